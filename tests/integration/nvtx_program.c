/* A program that calls NVTX in every way that the capture has to survive. The first argument chooses one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include <nvtx3/nvToolsExtPayload.h>

static nvtxEventAttributes_t attributes(nvtxStringHandle_t message)
{
    nvtxEventAttributes_t a = {0};
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.messageType = message == NULL ? NVTX_MESSAGE_UNKNOWN : NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = message;
    return a;
}

static nvtxEventAttributes_t text(const char *message)
{
    nvtxEventAttributes_t a = attributes(NULL);
    a.messageType = NVTX_MESSAGE_TYPE_ASCII;
    a.message.ascii = message;
    return a;
}

static double processor_time_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int every_call(void)
{
    nvtxDomainHandle_t one = nvtxDomainCreateA("one"), two = nvtxDomainCreateW(L"zw\u00f6lf");
    nvtxDomainHandle_t again = nvtxDomainCreateA("one");
    nvtxNameCategoryA(7, "seven");
    nvtxDomainNameCategoryA(one, 7, "seven of one");
    nvtxDomainNameCategoryW(two, 8, L"acht");
    nvtxNameOsThreadA((uint32_t)gettid(), "the only thread");

    nvtxRangePushA("outer");
    nvtxRangePushW(L"inn\u00e9r \U0001F600");
    nvtxMarkA("a mark");
    nvtxMarkW(L"a wide mark");
    nvtxRangePop();
    nvtxRangePop();

    nvtxEventAttributes_t a = text("categorized");
    a.category = 7;
    nvtxRangePushEx(&a);
    nvtxRangePop();
    nvtxDomainRangePushEx(one, &a);
    nvtxDomainRangePop(again);
    a.category = 9;
    nvtxDomainMarkEx(one, &a);
    nvtxMarkEx(&a);

    nvtxEventAttributes_t r = attributes(nvtxDomainRegisterStringA(one, "registered"));
    nvtxDomainRangePushEx(one, &r);
    nvtxDomainRangePop(one);
    r = attributes(nvtxDomainRegisterStringW(two, L"wide registered"));
    nvtxDomainRangePushEx(two, &r);
    nvtxDomainRangePop(two);

    nvtxEventAttributes_t p = text("payload");
    p.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64, p.payload.ullValue = UINT64_MAX, nvtxMarkEx(&p);
    p.payloadType = NVTX_PAYLOAD_TYPE_INT64, p.payload.llValue = -5, nvtxMarkEx(&p);
    p.payloadType = NVTX_PAYLOAD_TYPE_DOUBLE, p.payload.dValue = 2.5, nvtxMarkEx(&p);
    p.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT32, p.payload.uiValue = UINT32_MAX, nvtxMarkEx(&p);
    p.payloadType = NVTX_PAYLOAD_TYPE_INT32, p.payload.iValue = -6, nvtxMarkEx(&p);
    p.payloadType = NVTX_PAYLOAD_TYPE_FLOAT, p.payload.fValue = 0.5f, nvtxMarkEx(&p);
    nvtxRangeEnd(nvtxRangeStartEx(&p));

    nvtxRangeId_t x = nvtxRangeStartA("x");
    nvtxRangeId_t y = nvtxRangeStartW(L"y");
    nvtxRangeEnd(x);
    nvtxRangeEnd(y);
    nvtxRangeId_t z = nvtxDomainRangeStartEx(one, &a);
    nvtxDomainRangeEnd(one, z);

    nvtxRangePushA(""), nvtxRangePop();
    nvtxRangePushA(NULL), nvtxRangePop();
    nvtxRangePushEx(NULL), nvtxRangePop();
    nvtxRangeEnd(123456);
    nvtxRangePop();
    nvtxRangePushA("never closed");
    return 0;
}

enum { PAIRS_PER_THREAD = 2000 };

static void *nest(void *domain)
{
    nvtxEventAttributes_t outer = text("outer"), inner = text("inner");
    for (int i = 0; i < PAIRS_PER_THREAD / 2; i++) {
        nvtxDomainRangePushEx(domain, &outer);
        nvtxDomainRangePushEx(domain, &inner);
        nvtxDomainRangePop(domain);
        nvtxDomainRangePop(domain);
    }
    return NULL;
}

static int threads(int count)
{
    pthread_t thread[64];
    nvtxDomainHandle_t domain = nvtxDomainCreateA("threads");
    for (int i = 0; i < count; i++)
        pthread_create(&thread[i], NULL, nest, domain);
    for (int i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
    return 0;
}

static void *end_range(void *id)
{
    nvtxRangeEnd(*(nvtxRangeId_t *)id);
    return NULL;
}

static int crossing(void)
{
    nvtxRangeId_t first = nvtxRangeStartA("first"), second = nvtxRangeStartA("second"), third = nvtxRangeStartA("third");
    pthread_t thread;
    pthread_create(&thread, NULL, end_range, &first);
    pthread_join(thread, NULL);
    nvtxRangeEnd(third);
    nvtxRangeEnd(second);
    nvtxDomainHandle_t a = nvtxDomainCreateA("a"), b = nvtxDomainCreateA("b");
    nvtxEventAttributes_t in_a = text("in a"), in_b = text("in b");
    nvtxDomainRangePushEx(a, &in_a);
    nvtxDomainRangePushEx(b, &in_b);
    nvtxDomainRangePop(a);
    nvtxDomainRangePop(b);
    return 0;
}

static void *one_event(void *unused)
{
    nvtxMarkA("short-lived");
    return unused;
}

static int short_lived_threads(int count)
{
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, one_event, NULL);
        pthread_join(thread, NULL);
    }
    return 0;
}

/* Prints the processor time of a pair, ns: registered message, then text of 40 characters. */
static int many(long pairs)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateA("many");
    nvtxEventAttributes_t registered = attributes(nvtxDomainRegisterStringA(domain, "registered"));
    nvtxEventAttributes_t inlined = text("mtpprof::all_reduce site=layers.3.mlp.dn");
    nvtxDomainRangePushEx(domain, &registered), nvtxDomainRangePop(domain);
    double start = processor_time_ns();
    for (long i = 0; i < pairs; i++)
        nvtxDomainRangePushEx(domain, &registered), nvtxDomainRangePop(domain);
    double middle = processor_time_ns();
    for (long i = 0; i < pairs; i++)
        nvtxDomainRangePushEx(domain, &inlined), nvtxDomainRangePop(domain);
    printf("%.1f %.1f\n", (middle - start) / (double)pairs, (processor_time_ns() - middle) / (double)pairs);
    return 0;
}

/* Says on stdout how many ranges were closed, and goes on until it is killed. */
static _Noreturn void until_killed(void)
{
    for (long i = 0;; i++) {
        nvtxRangePushA("step");
        nvtxRangePop();
        if (i % 1000 == 999) {
            printf("%ld\n", i + 1);
            fflush(stdout);
        }
        if (i == 20000)
            nvtxRangePushA("the last one");
    }
}

static int forks(void)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateA("family");
    nvtxEventAttributes_t a = attributes(nvtxDomainRegisterStringA(domain, "inherited"));
    nvtxDomainRangePushEx(domain, &a);
    nvtxDomainRangePop(domain);
    pid_t silent = fork();
    if (silent == 0)
        _exit(0);
    pid_t child = fork();
    if (child == 0) {
        nvtxDomainMarkEx(domain, &a);
        nvtxEventAttributes_t own = attributes(nvtxDomainRegisterStringA(domain, "child's own"));
        nvtxDomainMarkEx(domain, &own);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            nvtxDomainMarkEx(domain, &a);
            nvtxDomainMarkEx(domain, &own);
            _exit(0);
        }
        waitpid(grandchild, NULL, 0);
        exit(0);
    }
    nvtxEventAttributes_t late = attributes(nvtxDomainRegisterStringA(domain, "parent's own"));
    nvtxDomainMarkEx(domain, &late);
    waitpid(silent, NULL, 0);
    waitpid(child, NULL, 0);
    return 0;
}

/* As daemons do at start; the file opened next gets a number that was somebody else's. */
static int closed_descriptors(const char *path)
{
    nvtxMarkA("before");
    for (int i = 3; i < 256; i++)
        close(i);
    int file = open(path, O_RDWR | O_CREAT, 0644);
    if (file < 0 || write(file, "precious", 8) != 8)
        return 1;
    for (int i = 0; i < 5000; i++)
        nvtxMarkA("after");
    return 0;
}

static void mark_in_handler(int number)
{
    (void)number;
    nvtxMarkA("in a handler");
}

static int signal_handler(void)
{
    nvtxRangePushA("begin"), nvtxRangePop();
    signal(SIGALRM, mark_in_handler);
    struct itimerval timer = {{0, 50}, {0, 50}};
    setitimer(ITIMER_REAL, &timer, NULL);
    for (int i = 0; i < 300000; i++)
        nvtxRangePushA("interrupted"), nvtxRangePop();
    memset(&timer, 0, sizeof timer);
    setitimer(ITIMER_REAL, &timer, NULL);
    return 0;
}

/* ---- payloads -------------------------------------------------------------------------------------------------------- */

struct inner {
    uint16_t small;
    double number;
};

struct everything {
    int8_t tiny;
    uint64_t large;
    float halves[2];
    char label[12];
    uint32_t color;
    struct inner inner;
    nvtxStringHandle_t string;
    const char *elsewhere;
};

#define ENTRY(type, name, field) {0, NVTX_PAYLOAD_ENTRY_TYPE_##type, name, NULL, 0, offsetof(struct everything, field), NULL, NULL}
#define FIELDS(mask) (NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES | \
                      NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE | (mask))

static uint64_t register_schema(nvtxDomainHandle_t domain, const nvtxPayloadSchemaEntry_t *entries, size_t count,
                                size_t size, uint64_t type, uint64_t id)
{
    nvtxPayloadSchemaAttr_t schema = {0};
    schema.fieldMask = FIELDS(id ? NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID : 0);
    schema.type = type;
    schema.entries = entries;
    schema.numEntries = count;
    schema.payloadStaticSize = size;
    schema.schemaId = id;
    return nvtxPayloadSchemaRegister(domain, &schema);
}

static int payloads(void)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateA("payloads");
    const nvtxPayloadEnum_t colors[] = {{"red", 1, 0}, {"green", 2, 0}, {"bold", 16, 1}, {"italic", 32, 1}};
    nvtxPayloadEnumAttr_t color = {0};
    color.fieldMask = NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES |
                      NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE;
    color.entries = colors, color.numEntries = 4, color.sizeOfEnum = 4;
    const uint64_t color_id = nvtxPayloadEnumRegister(domain, &color);
    const nvtxPayloadSchemaEntry_t inner[] = {
        {0, NVTX_PAYLOAD_ENTRY_TYPE_UINT16, "small", NULL, 0, 0, NULL, NULL},
        {0, NVTX_PAYLOAD_ENTRY_TYPE_DOUBLE, "number", NULL, 0, 0, NULL, NULL},
    };
    const uint64_t inner_id =
        register_schema(domain, inner, 2, sizeof(struct inner), NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, 0);
    nvtxPayloadSchemaEntry_t entries[] = {
        ENTRY(INT8, "tiny", tiny), ENTRY(UINT64, "large", large), ENTRY(FLOAT, "halves", halves),
        ENTRY(CSTRING, "label", label), ENTRY(UINT32, "color", color), ENTRY(UINT32, "inner", inner),
        ENTRY(NVTX_REGISTERED_STRING_HANDLE, "string", string), ENTRY(CSTRING, "elsewhere", elsewhere),
    };
    entries[2].flags = NVTX_PAYLOAD_ENTRY_FLAG_ARRAY_FIXED_SIZE, entries[2].arrayOrUnionDetail = 2;
    entries[3].flags = NVTX_PAYLOAD_ENTRY_FLAG_EVENT_MESSAGE, entries[3].arrayOrUnionDetail = 12;
    entries[4].type = color_id;
    entries[5].type = inner_id;
    const uint64_t schema_id =
        register_schema(domain, entries, 8, sizeof(struct everything), NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, 0);
    struct everything value = {-3, UINT64_MAX, {0.5f, 1.5f}, "labelled", 2, {9, 6.25},
                               nvtxDomainRegisterStringA(domain, "by handle"), "gone"};
    nvtxPayloadData_t data = {schema_id, sizeof value, &value};
    nvtxMarkPayload(domain, &data, 1);
    value.color = 48;
    nvtxRangePushPayload(domain, &data, 1);
    nvtxPayloadData_t number = {NVTX_PAYLOAD_ENTRY_TYPE_UINT64, sizeof value.large, &value.large};
    nvtxRangePopPayload(domain, &number, 1);
    nvtxRangeId_t range = nvtxRangeStartPayload(domain, &data, 1);
    nvtxRangeEndPayload(domain, range, &number, 1);
    nvtxPayloadData_t both[] = {{NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, SIZE_MAX, "found by its end"}, number};
    nvtxEventAttributes_t a = text("several");
    NVTX_PAYLOAD_EVTATTR_SET_MULTIPLE(a, both);
    nvtxDomainMarkEx(domain, &a);
    static char huge[1 << 20];
    nvtxPayloadData_t large = {NVTX_TYPE_PAYLOAD_SCHEMA_RAW, sizeof huge, huge};
    a = text("too large to keep");
    NVTX_PAYLOAD_EVTATTR_SET_DATA(a, &large, NVTX_TYPE_PAYLOAD_SCHEMA_RAW, huge, sizeof huge);
    nvtxDomainMarkEx(domain, &a);
    return 0;
}

/* NCCL's structures and static ids, as published in its nvtx.h and nvtx_payload_schemas.h. */
struct nccl_init {
    uint64_t communicator;
    int ranks, rank, device;
};

struct nccl_reduce {
    uint64_t communicator;
    size_t bytes;
    int operation;
};

struct nccl_gather {
    uint64_t communicator;
    size_t bytes;
};

#define NCCL(type, name, structure, field) \
    {0, type, name, NULL, 0, offsetof(struct structure, field), NULL, NULL}

static int nccl(long calls)
{
    nvtxDomainHandle_t domain = nvtxDomainCreateA("NCCL");
    const uint64_t first = NVTX_PAYLOAD_SCHEMA_ID_STATIC_START;
    const nvtxPayloadEnum_t operations[] = {{"Sum", 0, 0}, {"Product", 1, 0}, {"Max", 2, 0}, {"Min", 3, 0}, {"Avg", 4, 0}};
    const nvtxPayloadEnumAttr_t operation = {
        NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES |
            NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE | NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID,
        NULL, operations, 5, sizeof(int), first + 24, NULL};
    nvtxPayloadEnumRegister(domain, &operation);
    const nvtxPayloadSchemaEntry_t init[] = {
        NCCL(NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "NCCL communicator ID", nccl_init, communicator),
        NCCL(NVTX_PAYLOAD_ENTRY_TYPE_INT, "No. of ranks", nccl_init, ranks),
        NCCL(NVTX_PAYLOAD_ENTRY_TYPE_INT, "Rank", nccl_init, rank),
        NCCL(NVTX_PAYLOAD_ENTRY_TYPE_INT, "CUDA device", nccl_init, device),
    };
    const nvtxPayloadSchemaEntry_t reduce[] = {
        NCCL(NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "NCCL communicator ID", nccl_reduce, communicator),
        NCCL(NVTX_PAYLOAD_ENTRY_TYPE_SIZE, "Message size [bytes]", nccl_reduce, bytes),
        NCCL(first + 24, "Reduction operation", nccl_reduce, operation),
    };
    register_schema(domain, init, 4, sizeof(struct nccl_init), NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, first);
    register_schema(domain, reduce, 2, sizeof(struct nccl_gather), NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, first + 4);
    register_schema(domain, reduce, 3, sizeof(struct nccl_reduce), NVTX_PAYLOAD_SCHEMA_TYPE_STATIC, first + 5);
    struct nccl_init created = {0xabcdef, 4, 3, 0};
    nvtxEventAttributes_t a = attributes(nvtxDomainRegisterStringA(domain, "ncclCommInitRank"));
    nvtxDomainRangePushEx(domain, &a);
    nvtxPayloadData_t data = {first, sizeof created, &created};
    nvtxRangePopPayload(domain, &data, 1);
    nvtxEventAttributes_t all_reduce = attributes(nvtxDomainRegisterStringA(domain, "ncclAllReduce"));
    nvtxEventAttributes_t all_gather = attributes(nvtxDomainRegisterStringA(domain, "ncclAllGather"));
    for (long i = 0; i < calls; i++) {
        struct nccl_reduce r = {0xabcdef, (size_t)(1000 + i), (int)(i % 5)};
        nvtxPayloadRangePush(domain, &all_reduce, first + 5, &r, sizeof r);
        nvtxDomainRangePop(domain);
        struct nccl_gather g = {i % 2 ? 0xabcdef : 0x999, (size_t)(10 + i)};
        nvtxPayloadRangePush(domain, &all_gather, first + 4, &g, sizeof g);
        nvtxDomainRangePop(domain);
    }
    return 0;
}

/* ---- what must neither stop nor kill the program ----------------------------------------------------------------------- */

static void *push_until_cancelled(void *mode)
{
    int old;
    if (mode != NULL)
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    char name[4096];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (;;) {
        nvtxRangePushA(name); /* long names need new chunks all the time */
        nvtxDomainRegisterStringA(NULL, "registered");
        nvtxRangePop();
        pthread_testcancel();
    }
    return NULL;
}

/* Threads are cancelled at random moments; the program must come to its end, and record from another thread afterwards. */
static int cancelled_threads(int count)
{
    for (int i = 0; i < count; i++) {
        pthread_t thread;
        pthread_create(&thread, NULL, push_until_cancelled, i % 2 ? (void *)1 : NULL);
        usleep((useconds_t)(200 + i * 37 % 1000));
        pthread_cancel(thread);
        pthread_join(thread, NULL);
    }
    nvtxMarkA("afterwards");
    return 0;
}

/* fork without the C library: no handler of pthread_atfork runs. */
static int raw_fork(void)
{
    for (int i = 0; i < 100; i++)
        nvtxRangePushA("before"), nvtxRangePop();
    const long child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    for (int i = 0; i < (child == 0 ? 300 : 200); i++)
        nvtxRangePushA(child == 0 ? "child" : "parent"), nvtxRangePop();
    if (child == 0)
        _exit(0);
    waitpid((pid_t)child, NULL, 0);
    return 0;
}

static int vforked(const char *self)
{
    nvtxMarkA("before");
    const pid_t child = vfork();
    if (child == 0) {
        execl(self, self, "short-lived-threads", "1", (char *)NULL);
        _exit(1);
    }
    waitpid(child, NULL, 0);
    nvtxMarkA("after");
    return 0;
}

static void fill_descriptors(int *held, int *count, int room)
{
    while (*count < room && (held[*count] = dup(0)) >= 0)
        ++*count;
}

static void release_descriptors(const int *held, int *count)
{
    while (*count > 0)
        close(held[--*count]);
}

/* No free descriptor for a while, in the middle of nested ranges; then there are some again. */
static int no_descriptors(void)
{
    static int held[65536];
    int count = 0;
    nvtxRangePushA("open all the time");
    nvtxRangePushA("closed while nothing is recorded");
    fill_descriptors(held, &count, 65536);
    for (int i = 0; i < 20000; i++)
        nvtxRangePushA("maybe lost"), nvtxRangePop();
    nvtxRangePop();
    nvtxRangePushA("opened while nothing is recorded");
    release_descriptors(held, &count);
    usleep(200000);
    for (int i = 0; i < 1000; i++)
        nvtxRangePushA("later"), nvtxRangePop();
    nvtxRangePop();
    nvtxRangePushA("last"), nvtxRangePop();
    nvtxRangePop();
    return 0;
}

/* The file itself is to be made while there is no descriptor. */
static int no_descriptors_at_first(void)
{
    nvtxInitialize(NULL);
    const pid_t child = fork();
    if (child == 0) {
        static int held[65536];
        int count = 0;
        fill_descriptors(held, &count, 65536);
        nvtxRangePushA("lost"), nvtxRangePop();
        release_descriptors(held, &count);
        usleep(200000);
        nvtxRangePushA("kept"), nvtxRangePop();
        exit(0);
    }
    waitpid(child, NULL, 0);
    return 0;
}

/* Sizes and counts that no program means. */
static int wild_sizes(void)
{
    const uint64_t number = 7;
    const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 7, SIZE_MAX / 2, (size_t)1 << 40, 131072, 131073, 0};
    nvtxPayloadData_t many[300];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t readable = sizes[i] <= 131072 ? sizes[i] : 0;
        static char bytes[131073];
        nvtxPayloadData_t data = {NVTX_PAYLOAD_ENTRY_TYPE_UINT64, sizes[i], readable ? (const void *)bytes : &number};
        nvtxMarkPayload(NULL, &data, 1);
        nvtxRangePushPayload(NULL, &data, 1);
        nvtxRangePopPayload(NULL, &data, 1);
    }
    for (int i = 0; i < 300; i++)
        many[i] = (nvtxPayloadData_t){NVTX_PAYLOAD_ENTRY_TYPE_UINT64, SIZE_MAX - 1 - (size_t)i, &number};
    nvtxMarkPayload(NULL, many, 300);
    nvtxMarkPayload(NULL, NULL, 5);
    const nvtxPayloadSchemaEntry_t entry = {0, NVTX_PAYLOAD_ENTRY_TYPE_UINT64, "x", NULL, 0, 0, NULL, NULL};
    nvtxPayloadSchemaAttr_t schema = {0};
    schema.fieldMask = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                       NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES;
    schema.entries = &entry;
    schema.numEntries = SIZE_MAX;
    nvtxPayloadSchemaRegister(NULL, &schema);
    nvtxMarkA("afterwards");
    return 0;
}

static sigjmp_buf out_of_handler;

static void jump_out(int number)
{
    (void)number;
    siglongjmp(out_of_handler, 1);
}

/* A handler that never returns, amid whatever was going on. */
static int jumping_handler(void)
{
    volatile int jumps = 0;
    nvtxMarkA("before"); /* NVTX's own start cannot be jumped out of */
    signal(SIGALRM, jump_out);
    while (sigsetjmp(out_of_handler, 1) == 0 || ++jumps < 300) {
        struct itimerval timer = {{0, 0}, {0, 300}};
        setitimer(ITIMER_REAL, &timer, NULL);
        for (;;)
            nvtxRangePushA("interrupted for good"), nvtxRangePop();
    }
    nvtxMarkA("afterwards");
    return 0;
}

/* A name that another thread keeps changing: its length must be looked at once. */
static char changing[4096];
static atomic_int changing_ends;

static void *change_name(void *unused)
{
    for (size_t length = 1; !atomic_load(&changing_ends); length = length * 7 % 4093 + 1) {
        memset(changing, 'y', length);
        changing[length] = '\0';
    }
    return unused;
}

static int changing_names(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, change_name, NULL);
    nvtxPayloadData_t data = {NVTX_PAYLOAD_ENTRY_TYPE_CSTRING, SIZE_MAX, changing};
    for (int i = 0; i < 20000; i++) {
        nvtxMarkA(changing);
        nvtxMarkPayload(NULL, &data, 1);
        if (i % 100 == 0)
            nvtxDomainRegisterStringA(NULL, changing);
    }
    atomic_store(&changing_ends, 1);
    pthread_join(thread, NULL);
    nvtxMarkA("afterwards");
    return 0;
}

/* Prints wall ns a pair, of all threads together. */
static void *many_of_one(void *pairs)
{
    for (long i = 0; i < *(long *)pairs; i++)
        nvtxRangePushA("range"), nvtxRangePop();
    return NULL;
}

static int many_threads(int count, long pairs)
{
    pthread_t thread[64];
    struct timespec a, b;
    nvtxRangePushA("warm"), nvtxRangePop();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    for (int i = 0; i < count; i++)
        pthread_create(&thread[i], NULL, many_of_one, &pairs);
    for (int i = 0; i < count; i++)
        pthread_join(thread[i], NULL);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    printf("%.1f\n", ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)(pairs * count));
    return 0;
}

/* Work of about `us` microseconds in each range. Prints processor seconds. */
static int working_ranges(int ranges, int us)
{
    volatile double x = 1;
    double start = processor_time_ns();
    for (int i = 0; i < ranges; i++) {
        nvtxRangePushA("work");
        for (int k = 0; k < us * 400; k++)
            x = x * 1.0000001 + 1e-9;
        nvtxRangePop();
    }
    printf("%.6f\n", (processor_time_ns() - start) / 1e9);
    return 0;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const long number = argc > 2 ? atol(argv[2]) : 0;
    if (!strcmp(what, "every-call"))
        return every_call();
    if (!strcmp(what, "threads"))
        return threads((int)number);
    if (!strcmp(what, "crossing"))
        return crossing();
    if (!strcmp(what, "short-lived-threads"))
        return short_lived_threads((int)number);
    if (!strcmp(what, "many"))
        return many(number);
    if (!strcmp(what, "until-killed"))
        until_killed();
    if (!strcmp(what, "forks"))
        return forks();
    if (!strcmp(what, "closed-descriptors"))
        return closed_descriptors(argv[2]);
    if (!strcmp(what, "signal-handler"))
        return signal_handler();
    if (!strcmp(what, "payloads"))
        return payloads();
    if (!strcmp(what, "nccl"))
        return nccl(number);
    if (!strcmp(what, "cancelled-threads"))
        return cancelled_threads((int)number);
    if (!strcmp(what, "raw-fork"))
        return raw_fork();
    if (!strcmp(what, "vfork"))
        return vforked(argv[0]);
    if (!strcmp(what, "no-descriptors"))
        return no_descriptors();
    if (!strcmp(what, "no-descriptors-at-first"))
        return no_descriptors_at_first();
    if (!strcmp(what, "wild-sizes"))
        return wild_sizes();
    if (!strcmp(what, "jumping-handler"))
        return jumping_handler();
    if (!strcmp(what, "changing-names"))
        return changing_names();
    if (!strcmp(what, "many-threads"))
        return many_threads((int)number, argc > 3 ? atol(argv[3]) : 1000);
    if (!strcmp(what, "working-ranges"))
        return working_ranges((int)number, argc > 3 ? atoi(argv[3]) : 20);
    if (!strcmp(what, "exec")) {
        nvtxMarkA("before exec");
        execl(argv[0], argv[0], "short-lived-threads", "1", (char *)NULL);
    }
    return 2;
}
