/*
 * Records a process's NVTX calls into a file, without Nsight and without a GPU.
 *
 * NVTX loads the library named by NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2 (and, for the payload
 * extension, InitializeInjectionNvtxExtension) once for every binary of the process that has NVTX compiled in.
 *
 * The decision: one file per process, mapped into memory in chunks, each owned by one thread. An event is a copy into the
 * thread's chunk followed by one store of the chunk's count, so there is no lock, no system call and no draining thread on
 * the way, and whatever was counted is in the page cache: SIGKILL loses no finished event. Memory is bounded by one mapped
 * chunk per live thread, the file by MTPPROF_NVTX_MAX_BYTES; what does not fit is dropped and counted.
 *
 * Chunks are slotted pages: fixed 32-byte events grow from the front, the variable part of an event (inline text, payload)
 * grows from the back. mtpprof/nvtxformat.py holds the same layout for the reader.
 *
 * The file is opened again for every new chunk instead of being held open: programs that close all descriptors at start
 * would otherwise make us write into whatever file got the number.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>

#define FORMAT_MAGIC "MTPNVTX"
#define FORMAT_VERSION 1
#define BYTE_ORDER_MARK 0x01020304u
#define CHUNK_MAGIC 0x4b4e4843u /* "CHNK" */

enum { CHUNK_EVENTS = 1, CHUNK_DEFINITIONS = 2 };
enum { EVENT_PUSH = 1, EVENT_POP = 2, EVENT_START = 3, EVENT_END = 4, EVENT_MARK = 5 };
enum { PAYLOAD_NONE = 0, PAYLOAD_EXTENDED = 7 }; /* 1 to 6: nvtxPayloadType_t */
enum { DEFINE_DOMAIN = 1, DEFINE_STRING = 2, DEFINE_CATEGORY = 3, DEFINE_THREAD = 4, DEFINE_SCHEMA = 5, DEFINE_ENUM = 6 };

/* Blob positions are 16-bit numbers of 8-byte units, so a chunk has at most 512 KiB. */
#define CHUNK_BYTES_MAX ((size_t)512 << 10)
#define CHUNK_BYTES_MIN ((size_t)16 << 10)
#define TEXT_BYTES_MAX ((size_t)32 << 10)
#define BLOB_BYTES_MAX ((size_t)128 << 10)
#define PAYLOADS_MAX ((size_t)256)
#define FILE_BYTES_MAX ((uint64_t)1 << 30)

struct file_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; /* where the first chunk begins */
    uint32_t byte_order;
    uint32_t pid;
    uint32_t parent_pid;
    int32_t rank; /* -1: not said */
    uint64_t opened_monotonic_ns;
    uint64_t opened_realtime_ns;
    uint64_t opened_uncertainty_ns;
    uint64_t closed_monotonic_ns; /* 0: the process has not ended through exit() */
    uint64_t closed_realtime_ns;
    uint64_t closed_uncertainty_ns;
    _Atomic uint64_t end_bytes; /* where the last chunk ends */
    _Atomic uint64_t dropped_events;
    char host[64];
    char command[256];
};

struct chunk_header {
    uint32_t magic;
    uint32_t kind;
    uint64_t chunk_bytes;
    uint64_t thread_id;
    uint64_t monotonic_ns;
    uint64_t realtime_ns;
    uint64_t uncertainty_ns;
    _Atomic uint64_t used; /* events: how many; definitions: how many bytes. Everything below it is complete */
    char thread_name[16];
    uint64_t reserved;
};

struct event {
    uint64_t monotonic_ns;
    uint64_t value;    /* payload; for start and end the range's id, their payload then lies in the blob */
    uint32_t message;  /* registered string; 0: in the blob, or none */
    uint32_t category;
    uint16_t domain;   /* 0: the default domain */
    uint16_t blob;     /* position in the chunk in 8-byte units; 0: no blob */
    uint16_t text_bytes;
    uint8_t kind;
    uint8_t payload_type;
};

struct definition {
    uint32_t bytes; /* of the whole record, a multiple of 8 */
    uint16_t kind;
    uint16_t domain;
    uint64_t id;
};

struct blob_payload {
    uint64_t schema;
    uint32_t bytes;        /* as the program gave it */
    uint32_t stored_bytes; /* that follow; fewer: too large to be kept */
};

_Static_assert(sizeof(struct file_header) == 416, "the reader relies on this layout");
_Static_assert(sizeof(struct chunk_header) == 80, "the reader relies on this layout");
_Static_assert(sizeof(struct event) == 32, "the reader relies on this layout");
_Static_assert(sizeof(struct definition) == 16, "the reader relies on this layout");
_Static_assert(sizeof(struct blob_payload) == 16, "the reader relies on this layout");
_Static_assert(sizeof(long) == 8 && sizeof(wchar_t) == 4, "written for 64-bit Linux");

/* What belongs to one process. A forked child begins again with all of it zero, except the generation. */
static struct {
    pthread_mutex_t lock; /* guards all below; taken once per chunk or definition, never per event */
    struct file_header *_Atomic header;
    int failed;
    uint64_t end_bytes;
    uint64_t limit_bytes;
    struct chunk_header *definitions;
    char path[4096];
} process;

static _Atomic uint32_t generation = 1;
static char inherited_path[4096]; /* of the process that this one was forked from: its definitions are ours */

static _Atomic uint64_t next_string = 1;
static _Atomic uint64_t next_domain = 1;
static _Atomic uint64_t next_range = 1;
static _Atomic uint64_t next_schema = NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START;

/* What belongs to one thread. */
static _Thread_local struct {
    uint32_t generation; /* of the process state that `chunk` belongs to; 0: no chunk */
    volatile sig_atomic_t busy; /* an event from a signal handler must not tear the one it interrupted */
    struct chunk_header *chunk;
    size_t chunk_bytes;
    size_t front; /* where the next event goes */
    size_t back;  /* where the blobs begin */
} thread;

static pthread_key_t thread_key;

/* ---- clocks ---------------------------------------------------------------------------------------------------------- */

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Both clocks at one instant: the tightest of a few brackets, and half its width as the uncertainty. */
static void sample_clocks(uint64_t *monotonic, uint64_t *realtime, uint64_t *uncertainty)
{
    uint64_t best = UINT64_MAX;
    for (int attempt = 0; attempt < 5; attempt++) {
        const uint64_t before = clock_ns(CLOCK_MONOTONIC);
        const uint64_t wall = clock_ns(CLOCK_REALTIME);
        const uint64_t width = clock_ns(CLOCK_MONOTONIC) - before;
        if (width < best) {
            best = width;
            *monotonic = before + width / 2;
            *realtime = wall;
        }
    }
    *uncertainty = best / 2 + 1;
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */

static size_t page_bytes(void)
{
    const long size = sysconf(_SC_PAGESIZE);
    return size > 0 ? (size_t)size : 4096;
}

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static uint64_t environment_number(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (text == NULL || *text == '\0')
        return fallback;
    const unsigned long long value = strtoull(text, &end, 10);
    return *end == '\0' ? (uint64_t)value : fallback;
}

static int32_t environment_rank(void)
{
    const uint64_t rank = environment_number("MTPPROF_NVTX_RANK", environment_number("RANK", UINT64_MAX));
    return rank <= INT32_MAX ? (int32_t)rank : -1;
}

/* Disk space is reserved before it is mapped: writing to a mapped page of a full disk would kill the program. */
static void *map_file_part(int file, uint64_t offset, size_t bytes)
{
    const int error = posix_fallocate(file, (off_t)offset, (off_t)bytes);
    if (error != 0) {
        errno = error;
        return NULL;
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)offset);
    return at == MAP_FAILED ? NULL : at;
}

static void read_command_line(char *to, size_t bytes)
{
    const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    const ssize_t count = read(file, to, bytes - 1);
    for (ssize_t i = 0; i + 1 < count; i++)
        if (to[i] == '\0')
            to[i] = ' ';
    close(file);
}

/* A file of our own, whatever lies in the directory: a pid can come again after exec, and on another host. */
static int create_file(const char *directory, int32_t rank)
{
    char prefix[24] = "";
    if (rank >= 0)
        snprintf(prefix, sizeof prefix, "rank%d.", (int)rank);
    for (int attempt = 0; attempt < 1000; attempt++) {
        char suffix[16] = "";
        if (attempt > 0)
            snprintf(suffix, sizeof suffix, "-%d", attempt);
        const int length = snprintf(process.path, sizeof process.path, "%s/%spid%d%s.nvtx", directory, prefix,
                                    (int)getpid(), suffix);
        if (length < 0 || (size_t)length >= sizeof process.path) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int file = open(process.path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (file >= 0 || errno != EEXIST)
            return file;
    }
    return -1;
}

/* Reserves and maps the next chunk; NULL and nothing changed where the limit or the disk is full. Needs the lock. */
static struct chunk_header *new_chunk(uint32_t kind, size_t bytes)
{
    if (process.end_bytes + bytes > process.limit_bytes)
        return NULL;
    struct chunk_header *chunk = NULL;
    const int file = open(process.path, O_RDWR | O_CLOEXEC);
    if (file >= 0) {
        chunk = map_file_part(file, process.end_bytes, bytes);
        close(file);
    }
    if (chunk == NULL) {
        process.limit_bytes = process.end_bytes; /* the disk is full or the file is gone: do not try at every event */
        return NULL;
    }
    chunk->kind = kind;
    chunk->chunk_bytes = bytes;
    chunk->thread_id = (uint64_t)syscall(SYS_gettid);
    sample_clocks(&chunk->monotonic_ns, &chunk->realtime_ns, &chunk->uncertainty_ns);
    prctl(PR_GET_NAME, chunk->thread_name, 0, 0, 0);
    chunk->magic = CHUNK_MAGIC;
    process.end_bytes += bytes;
    atomic_store_explicit(&process.header->end_bytes, process.end_bytes, memory_order_release);
    return chunk;
}

/* Brings the definitions of the process that this one was forked from into its own file. Needs the lock. */
static void copy_inherited_definitions(void)
{
    const int file = open(inherited_path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return;
    struct file_header theirs;
    uint64_t offset = 0, end = 0;
    if (pread(file, &theirs, sizeof theirs, 0) == (ssize_t)sizeof theirs) {
        offset = theirs.header_bytes;
        end = theirs.end_bytes;
    }
    struct chunk_header chunk;
    while (offset < end && pread(file, &chunk, sizeof chunk, (off_t)offset) == (ssize_t)sizeof chunk) {
        if (chunk.magic != CHUNK_MAGIC || chunk.chunk_bytes < sizeof chunk)
            break;
        if (chunk.kind == CHUNK_DEFINITIONS && chunk.used <= chunk.chunk_bytes - sizeof chunk) {
            struct chunk_header *copy = new_chunk(CHUNK_DEFINITIONS, chunk.chunk_bytes);
            if (copy == NULL)
                break;
            if (pread(file, copy + 1, chunk.used, (off_t)(offset + sizeof chunk)) == (ssize_t)chunk.used)
                atomic_store_explicit(&copy->used, chunk.used, memory_order_release);
            munmap(copy, chunk.chunk_bytes);
        }
        offset += chunk.chunk_bytes;
    }
    close(file);
}

static void fail(const char *what)
{
    fprintf(stderr, "mtpprof: NVTX is not recorded in process %d: %s: %s\n", (int)getpid(), what, strerror(errno));
    process.failed = 1;
}

/* Creates this process's file if it has none. Needs the lock. Returns 0 where it cannot be had. */
static int open_process_file(void)
{
    if (process.header != NULL || process.failed)
        return process.header != NULL;
    const char *directory = getenv("MTPPROF_NVTX_DIR");
    if (directory == NULL || *directory == '\0') {
        errno = ENOENT;
        fail("MTPPROF_NVTX_DIR is not set");
        return 0;
    }
    const int32_t rank = environment_rank();
    const int file = create_file(directory, rank);
    if (file < 0) {
        fail(process.path);
        return 0;
    }
    const size_t header_bytes = page_bytes();
    struct file_header *header = map_file_part(file, 0, header_bytes);
    close(file);
    if (header == NULL) {
        fail(process.path);
        unlink(process.path);
        return 0;
    }
    struct rlimit size_limit;
    process.limit_bytes = environment_number("MTPPROF_NVTX_MAX_BYTES", FILE_BYTES_MAX);
    /* Growing past RLIMIT_FSIZE would send the program SIGXFSZ. */
    if (getrlimit(RLIMIT_FSIZE, &size_limit) == 0 && size_limit.rlim_cur < process.limit_bytes)
        process.limit_bytes = size_limit.rlim_cur;
    header->version = FORMAT_VERSION;
    header->header_bytes = (uint32_t)header_bytes;
    header->byte_order = BYTE_ORDER_MARK;
    header->pid = (uint32_t)getpid();
    header->parent_pid = (uint32_t)getppid();
    header->rank = rank;
    gethostname(header->host, sizeof header->host - 1);
    read_command_line(header->command, sizeof header->command);
    sample_clocks(&header->opened_monotonic_ns, &header->opened_realtime_ns, &header->opened_uncertainty_ns);
    atomic_store_explicit(&header->end_bytes, header_bytes, memory_order_release);
    memcpy(header->magic, FORMAT_MAGIC, sizeof FORMAT_MAGIC);
    process.end_bytes = header_bytes;
    process.header = header;
    if (inherited_path[0] != '\0')
        copy_inherited_definitions();
    return 1;
}

static void count_dropped(void)
{
    if (process.header != NULL)
        atomic_fetch_add_explicit(&process.header->dropped_events, 1, memory_order_relaxed);
}

/* ---- the life of processes and threads ------------------------------------------------------------------------------- */

static void release_thread_chunk(void *unused)
{
    (void)unused;
    if (thread.generation != 0)
        munmap(thread.chunk, thread.chunk_bytes);
    thread.generation = 0;
}

static void begin_again_after_fork(void)
{
    if (process.header != NULL)
        memcpy(inherited_path, process.path, sizeof inherited_path);
    memset(&process, 0, sizeof process); /* all bits zero is an unlocked mutex on Linux */
    atomic_fetch_add(&generation, 1);
}

static void set_up_once(void)
{
    pthread_key_create(&thread_key, release_thread_chunk);
    pthread_atfork(NULL, NULL, begin_again_after_fork);
}

__attribute__((destructor)) static void close_process_file(void)
{
    struct file_header *header = process.header;
    if (header == NULL)
        return;
    uint64_t monotonic;
    sample_clocks(&monotonic, &header->closed_realtime_ns, &header->closed_uncertainty_ns);
    header->closed_monotonic_ns = monotonic;
}

/* ---- definitions: names, strings, schemas ---------------------------------------------------------------------------- */

/* Writes the variable part of a definition; with `at` NULL it only counts bytes. */
struct writer {
    char *at;
    size_t bytes;
};

static void put_number(struct writer *to, uint64_t value)
{
    if (to->at != NULL)
        memcpy(to->at + to->bytes, &value, sizeof value);
    to->bytes += sizeof value;
}

static void put_bytes(struct writer *to, const char *text, size_t length)
{
    put_number(to, length);
    if (to->at != NULL && length > 0)
        memcpy(to->at + to->bytes, text, length);
    to->bytes += round_up(length, 8);
}

static void put_text(struct writer *to, const char *text)
{
    put_bytes(to, text, text == NULL ? 0 : strnlen(text, TEXT_BYTES_MAX));
}

typedef void describe_function(struct writer *, const void *);

/* Space for a definition of `bytes` in all. Needs the lock. */
static struct definition *reserve_definition(size_t bytes)
{
    struct chunk_header *chunk = process.definitions;
    if (chunk == NULL || sizeof *chunk + chunk->used + bytes > chunk->chunk_bytes) {
        const size_t least = sizeof *chunk + bytes;
        struct chunk_header *next =
            new_chunk(CHUNK_DEFINITIONS, round_up(least > 4 * CHUNK_BYTES_MIN ? least : 4 * CHUNK_BYTES_MIN, page_bytes()));
        if (next == NULL)
            return NULL;
        if (chunk != NULL)
            munmap(chunk, chunk->chunk_bytes);
        process.definitions = chunk = next;
    }
    return (struct definition *)((char *)(chunk + 1) + chunk->used);
}

static void define(uint16_t kind, uint16_t domain, uint64_t id, describe_function *describe, const void *what)
{
    if (thread.busy) /* in a signal handler that interrupted us: the lock may be ours */
        return;
    thread.busy = 1;
    struct writer counter = {NULL, sizeof(struct definition)};
    describe(&counter, what);
    pthread_mutex_lock(&process.lock);
    struct definition *record = NULL;
    if (counter.bytes <= UINT32_MAX && open_process_file())
        record = reserve_definition(counter.bytes);
    if (record != NULL) {
        *record = (struct definition){(uint32_t)counter.bytes, kind, domain, id};
        describe(&(struct writer){(char *)record, sizeof *record}, what);
        atomic_store_explicit(&process.definitions->used, process.definitions->used + counter.bytes, memory_order_release);
    }
    pthread_mutex_unlock(&process.lock);
    thread.busy = 0;
}

static void describe_text(struct writer *to, const void *text)
{
    put_text(to, text);
}

static void describe_schema(struct writer *to, const void *what)
{
    const nvtxPayloadSchemaAttr_t *schema = what;
    const uint64_t mask = schema->fieldMask;
    put_text(to, mask & NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NAME ? schema->name : NULL);
    put_number(to, schema->type);
    put_number(to, mask & NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_FLAGS ? schema->flags : 0);
    put_number(to, mask & NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_STATIC_SIZE ? schema->payloadStaticSize : 0);
    put_number(to, mask & NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ALIGNMENT ? schema->packAlign : 0);
    put_number(to, schema->numEntries);
    for (size_t i = 0; i < schema->numEntries; i++) {
        const nvtxPayloadSchemaEntry_t *entry = &schema->entries[i];
        put_number(to, entry->flags);
        put_number(to, entry->type);
        put_number(to, entry->arrayOrUnionDetail);
        put_number(to, entry->offset);
        put_text(to, entry->name);
    }
}

static void describe_enum(struct writer *to, const void *what)
{
    const nvtxPayloadEnumAttr_t *enumeration = what;
    put_text(to, enumeration->fieldMask & NVTX_PAYLOAD_ENUM_ATTR_FIELD_NAME ? enumeration->name : NULL);
    put_number(to, enumeration->sizeOfEnum);
    put_number(to, enumeration->numEntries);
    for (size_t i = 0; i < enumeration->numEntries; i++) {
        put_number(to, enumeration->entries[i].value);
        put_number(to, enumeration->entries[i].isFlag != 0);
        put_text(to, enumeration->entries[i].name);
    }
}

/* ---- events ---------------------------------------------------------------------------------------------------------- */

/* Everything about an event but its time. */
struct request {
    uint8_t kind;
    uint8_t payload_type;
    uint16_t domain;
    uint32_t message;
    uint32_t category;
    uint64_t range_id; /* start and end only */
    uint64_t value;    /* of a payload of types 1 to 6 */
    const char *text;
    size_t text_bytes;
    const nvtxPayloadData_t *payloads;
    size_t payload_count;
};

static int has_range_id(const struct request *request)
{
    return request->kind == EVENT_START || request->kind == EVENT_END;
}

static int has_value_in_blob(const struct request *request)
{
    return has_range_id(request) && request->payload_type != PAYLOAD_NONE && request->payload_type != PAYLOAD_EXTENDED;
}

static int is_c_string(uint64_t type)
{
    return type == NVTX_PAYLOAD_ENTRY_TYPE_CSTRING || type == NVTX_PAYLOAD_ENTRY_TYPE_CSTRING_UTF8;
}

/* Bytes of one payload. Only a C string may leave them to be found (SIZE_MAX). */
static size_t payload_bytes(const nvtxPayloadData_t *payload)
{
    if (payload->payload == NULL)
        return 0;
    if (payload->size != SIZE_MAX)
        return payload->size;
    return is_c_string(payload->schemaId) ? strnlen(payload->payload, TEXT_BYTES_MAX) : 0;
}

/* Lays out the payloads at `at`, or only counts where it is NULL; returns the bytes. Payloads past the limit keep only their size. */
static size_t store_payloads(char *at, const struct request *request)
{
    uint64_t count = request->payloads == NULL ? 0 : request->payload_count;
    if (count > PAYLOADS_MAX)
        count = PAYLOADS_MAX;
    size_t bytes = sizeof count;
    if (at != NULL)
        memcpy(at, &count, sizeof count);
    for (size_t i = 0; i < count; i++) {
        const nvtxPayloadData_t *payload = &request->payloads[i];
        const size_t size = payload_bytes(payload);
        const size_t stored = bytes + sizeof(struct blob_payload) + size <= BLOB_BYTES_MAX ? size : 0;
        if (at != NULL) {
            const struct blob_payload head = {payload->schemaId, size > UINT32_MAX ? UINT32_MAX : (uint32_t)size,
                                              (uint32_t)stored};
            memcpy(at + bytes, &head, sizeof head);
            if (stored > 0)
                memcpy(at + bytes + sizeof head, payload->payload, stored);
        }
        bytes += sizeof(struct blob_payload) + round_up(stored, 8);
    }
    return bytes;
}

static size_t blob_bytes(const struct request *request)
{
    size_t bytes = round_up(request->text_bytes, 8);
    if (has_value_in_blob(request))
        bytes += sizeof request->value;
    if (request->payload_type == PAYLOAD_EXTENDED)
        bytes += store_payloads(NULL, request);
    return bytes;
}

static void store_blob(char *at, const struct request *request)
{
    if (request->text_bytes > 0)
        memcpy(at, request->text, request->text_bytes);
    at += round_up(request->text_bytes, 8);
    if (has_value_in_blob(request))
        memcpy(at, &request->value, sizeof request->value);
    if (request->payload_type == PAYLOAD_EXTENDED)
        store_payloads(at, request);
}

/* Gives the thread a chunk with room for an event and `blob` bytes; chunks of a thread double up to the largest. */
static int next_thread_chunk(size_t blob)
{
    size_t bytes = CHUNK_BYTES_MIN;
    if (thread.generation == atomic_load_explicit(&generation, memory_order_relaxed))
        bytes = thread.chunk_bytes * 2;
    while (bytes < sizeof(struct chunk_header) + sizeof(struct event) + blob)
        bytes *= 2;
    bytes = round_up(bytes > CHUNK_BYTES_MAX ? CHUNK_BYTES_MAX : bytes, page_bytes());
    pthread_mutex_lock(&process.lock);
    struct chunk_header *chunk = open_process_file() ? new_chunk(CHUNK_EVENTS, bytes) : NULL;
    pthread_mutex_unlock(&process.lock);
    if (chunk == NULL) {
        /* Nothing more from this thread: a pop that still fitted would be taken for that of an earlier push. */
        thread.back = thread.front;
        return 0;
    }
    release_thread_chunk(NULL);
    thread.chunk = chunk;
    thread.chunk_bytes = bytes;
    thread.front = sizeof *chunk;
    thread.back = bytes;
    thread.generation = atomic_load_explicit(&generation, memory_order_relaxed);
    pthread_setspecific(thread_key, &thread);
    return 1;
}

static void record(const struct request *request, uint64_t now)
{
    if (thread.busy) {
        count_dropped();
        return;
    }
    thread.busy = 1;
    const size_t blob = blob_bytes(request);
    const int stale = thread.generation != atomic_load_explicit(&generation, memory_order_relaxed);
    if ((stale || thread.front + sizeof(struct event) + blob > thread.back) && !next_thread_chunk(blob)) {
        count_dropped();
        thread.busy = 0;
        return;
    }
    char *base = (char *)thread.chunk;
    struct event *event = (struct event *)(base + thread.front);
    event->value = has_range_id(request) ? request->range_id : request->value;
    event->message = request->message;
    event->category = request->category;
    event->domain = request->domain;
    event->text_bytes = (uint16_t)request->text_bytes;
    event->kind = request->kind;
    event->payload_type = request->payload_type;
    if (blob > 0) {
        thread.back -= blob;
        event->blob = (uint16_t)(thread.back / 8);
        store_blob(base + thread.back, request);
    }
    thread.front += sizeof *event;
    /* The time comes last where a range opens and first where it closes, so that ranges do not contain our own work. */
    event->monotonic_ns = now != 0 ? now : clock_ns(CLOCK_MONOTONIC);
    atomic_store_explicit(&thread.chunk->used, (thread.front - sizeof *thread.chunk) / sizeof *event, memory_order_release);
    thread.busy = 0;
}

/* UTF-8 of a wide string, cut to what fits. */
static size_t narrow(const wchar_t *wide, char *to, size_t room)
{
    size_t n = 0;
    for (; wide != NULL && *wide != 0 && n + 4 <= room; wide++) {
        const uint32_t c = (uint32_t)*wide;
        if (c < 0x80) {
            to[n++] = (char)c;
        } else if (c < 0x800) {
            to[n++] = (char)(0xc0 | c >> 6);
            to[n++] = (char)(0x80 | (c & 0x3f));
        } else if (c < 0x10000) {
            to[n++] = (char)(0xe0 | c >> 12);
            to[n++] = (char)(0x80 | (c >> 6 & 0x3f));
            to[n++] = (char)(0x80 | (c & 0x3f));
        } else if (c < 0x110000) {
            to[n++] = (char)(0xf0 | c >> 18);
            to[n++] = (char)(0x80 | (c >> 12 & 0x3f));
            to[n++] = (char)(0x80 | (c >> 6 & 0x3f));
            to[n++] = (char)(0x80 | (c & 0x3f));
        }
    }
    return n;
}

#define WIDE_BYTES_MAX 4096

static uint16_t domain_number(nvtxDomainHandle_t domain)
{
    return (uint16_t)(uintptr_t)domain;
}

static uint64_t record_text(uint8_t kind, const char *text, size_t bytes, uint64_t range_id)
{
    record(&(struct request){.kind = kind, .text = text, .text_bytes = bytes, .range_id = range_id}, 0);
    return range_id;
}

static uint64_t record_ascii(uint8_t kind, const char *text, uint64_t range_id)
{
    return record_text(kind, text, text == NULL ? 0 : strnlen(text, TEXT_BYTES_MAX), range_id);
}

static uint64_t record_wide(uint8_t kind, const wchar_t *wide, uint64_t range_id)
{
    char text[WIDE_BYTES_MAX];
    return record_text(kind, text, narrow(wide, text, sizeof text), range_id);
}

static uint64_t record_attributes(uint8_t kind, uint16_t domain, const nvtxEventAttributes_t *attributes, uint64_t range_id)
{
    char narrowed[WIDE_BYTES_MAX];
    struct request request = {.kind = kind, .domain = domain, .range_id = range_id};
    if (attributes == NULL || attributes->size < sizeof *attributes) {
        record(&request, 0);
        return range_id;
    }
    request.category = attributes->category;
    if (attributes->messageType == NVTX_MESSAGE_TYPE_REGISTERED) {
        request.message = (uint32_t)(uintptr_t)attributes->message.registered;
    } else if (attributes->messageType == NVTX_MESSAGE_TYPE_ASCII && attributes->message.ascii != NULL) {
        request.text = attributes->message.ascii;
        request.text_bytes = strnlen(request.text, TEXT_BYTES_MAX);
    } else if (attributes->messageType == NVTX_MESSAGE_TYPE_UNICODE) {
        request.text = narrowed;
        request.text_bytes = narrow(attributes->message.unicode, narrowed, sizeof narrowed);
    }
    if (attributes->payloadType == NVTX_PAYLOAD_TYPE_EXT) {
        request.payloads = (const nvtxPayloadData_t *)(uintptr_t)attributes->payload.ullValue;
        request.payload_count = attributes->reserved0 > 0 ? (size_t)attributes->reserved0 : 0;
        request.payload_type = PAYLOAD_EXTENDED;
    } else if (attributes->payloadType > PAYLOAD_NONE && attributes->payloadType < PAYLOAD_EXTENDED) {
        request.payload_type = (uint8_t)attributes->payloadType;
        request.value = attributes->payload.ullValue;
    }
    record(&request, 0);
    return range_id;
}

static void record_payloads(uint8_t kind, nvtxDomainHandle_t domain, uint64_t range_id, const nvtxPayloadData_t *payloads,
                            size_t count, uint64_t now)
{
    record(&(struct request){.kind = kind,
                             .domain = domain_number(domain),
                             .range_id = range_id,
                             .payload_type = PAYLOAD_EXTENDED,
                             .payloads = payloads,
                             .payload_count = count},
           now);
}

static void record_pop(uint16_t domain)
{
    const uint64_t now = clock_ns(CLOCK_MONOTONIC);
    record(&(struct request){.kind = EVENT_POP, .domain = domain}, now);
}

static void record_end(uint16_t domain, uint64_t range_id)
{
    const uint64_t now = clock_ns(CLOCK_MONOTONIC);
    record(&(struct request){.kind = EVENT_END, .domain = domain, .range_id = range_id}, now);
}

/* ---- the NVTX callbacks ---------------------------------------------------------------------------------------------- */

static nvtxRangeId_t new_range(void)
{
    return atomic_fetch_add_explicit(&next_range, 1, memory_order_relaxed);
}

static void on_mark_ex(const nvtxEventAttributes_t *attributes)
{
    record_attributes(EVENT_MARK, 0, attributes, 0);
}

static void on_mark_a(const char *message)
{
    record_ascii(EVENT_MARK, message, 0);
}

static void on_mark_w(const wchar_t *message)
{
    record_wide(EVENT_MARK, message, 0);
}

static nvtxRangeId_t on_range_start_ex(const nvtxEventAttributes_t *attributes)
{
    return record_attributes(EVENT_START, 0, attributes, new_range());
}

static nvtxRangeId_t on_range_start_a(const char *message)
{
    return record_ascii(EVENT_START, message, new_range());
}

static nvtxRangeId_t on_range_start_w(const wchar_t *message)
{
    return record_wide(EVENT_START, message, new_range());
}

static void on_range_end(nvtxRangeId_t id)
{
    record_end(0, id);
}

static int on_range_push_ex(const nvtxEventAttributes_t *attributes)
{
    record_attributes(EVENT_PUSH, 0, attributes, 0);
    return NVTX_NO_PUSH_POP_TRACKING;
}

static int on_range_push_a(const char *message)
{
    record_ascii(EVENT_PUSH, message, 0);
    return NVTX_NO_PUSH_POP_TRACKING;
}

static int on_range_push_w(const wchar_t *message)
{
    record_wide(EVENT_PUSH, message, 0);
    return NVTX_NO_PUSH_POP_TRACKING;
}

static int on_range_pop(void)
{
    record_pop(0);
    return NVTX_NO_PUSH_POP_TRACKING;
}

static void name_wide(uint16_t kind, uint16_t domain, uint64_t id, const wchar_t *name)
{
    char text[WIDE_BYTES_MAX + 1];
    text[narrow(name, text, WIDE_BYTES_MAX)] = '\0';
    define(kind, domain, id, describe_text, text);
}

static void on_name_category_a(uint32_t category, const char *name)
{
    define(DEFINE_CATEGORY, 0, category, describe_text, name);
}

static void on_name_category_w(uint32_t category, const wchar_t *name)
{
    name_wide(DEFINE_CATEGORY, 0, category, name);
}

static void on_name_thread_a(uint32_t thread_id, const char *name)
{
    define(DEFINE_THREAD, 0, thread_id, describe_text, name);
}

static void on_name_thread_w(uint32_t thread_id, const wchar_t *name)
{
    name_wide(DEFINE_THREAD, 0, thread_id, name);
}

static void on_domain_mark_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes)
{
    record_attributes(EVENT_MARK, domain_number(domain), attributes, 0);
}

static nvtxRangeId_t on_domain_range_start_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes)
{
    return record_attributes(EVENT_START, domain_number(domain), attributes, new_range());
}

static void on_domain_range_end(nvtxDomainHandle_t domain, nvtxRangeId_t id)
{
    record_end(domain_number(domain), id);
}

static int on_domain_range_push_ex(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes)
{
    record_attributes(EVENT_PUSH, domain_number(domain), attributes, 0);
    return NVTX_NO_PUSH_POP_TRACKING;
}

static int on_domain_range_pop(nvtxDomainHandle_t domain)
{
    record_pop(domain_number(domain));
    return NVTX_NO_PUSH_POP_TRACKING;
}

static void on_domain_name_category_a(nvtxDomainHandle_t domain, uint32_t category, const char *name)
{
    define(DEFINE_CATEGORY, domain_number(domain), category, describe_text, name);
}

static void on_domain_name_category_w(nvtxDomainHandle_t domain, uint32_t category, const wchar_t *name)
{
    name_wide(DEFINE_CATEGORY, domain_number(domain), category, name);
}

/* Handles are plain numbers, never followed: a handle from before a fork, or a wrong one, does no harm. */
static nvtxStringHandle_t on_register_string_a(nvtxDomainHandle_t domain, const char *string)
{
    const uint64_t id = atomic_fetch_add_explicit(&next_string, 1, memory_order_relaxed);
    if (id > UINT32_MAX)
        return NULL;
    define(DEFINE_STRING, domain_number(domain), id, describe_text, string);
    return (nvtxStringHandle_t)(uintptr_t)id;
}

static nvtxStringHandle_t on_register_string_w(nvtxDomainHandle_t domain, const wchar_t *string)
{
    char text[WIDE_BYTES_MAX + 1];
    text[narrow(string, text, WIDE_BYTES_MAX)] = '\0';
    return on_register_string_a(domain, text);
}

/* Past 65535 domains the rest shares the default one. */
static nvtxDomainHandle_t on_domain_create_a(const char *name)
{
    const uint64_t id = atomic_fetch_add_explicit(&next_domain, 1, memory_order_relaxed);
    if (id > UINT16_MAX)
        return NULL;
    define(DEFINE_DOMAIN, (uint16_t)id, id, describe_text, name);
    return (nvtxDomainHandle_t)(uintptr_t)id;
}

static nvtxDomainHandle_t on_domain_create_w(const wchar_t *name)
{
    char text[WIDE_BYTES_MAX + 1];
    text[narrow(name, text, WIDE_BYTES_MAX)] = '\0';
    return on_domain_create_a(text);
}

static uint64_t on_schema_register(nvtxDomainHandle_t domain, const nvtxPayloadSchemaAttr_t *schema)
{
    const uint64_t needed = NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_TYPE | NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_ENTRIES |
                            NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_NUM_ENTRIES;
    if (schema == NULL || (schema->fieldMask & needed) != needed || schema->entries == NULL)
        return 0;
    const uint64_t id = schema->fieldMask & NVTX_PAYLOAD_SCHEMA_ATTR_FIELD_SCHEMA_ID
                            ? schema->schemaId
                            : atomic_fetch_add_explicit(&next_schema, 1, memory_order_relaxed);
    define(DEFINE_SCHEMA, domain_number(domain), id, describe_schema, schema);
    return id;
}

static uint64_t on_enum_register(nvtxDomainHandle_t domain, const nvtxPayloadEnumAttr_t *enumeration)
{
    const uint64_t needed = NVTX_PAYLOAD_ENUM_ATTR_FIELD_ENTRIES | NVTX_PAYLOAD_ENUM_ATTR_FIELD_NUM_ENTRIES |
                            NVTX_PAYLOAD_ENUM_ATTR_FIELD_SIZE;
    if (enumeration == NULL || (enumeration->fieldMask & needed) != needed || enumeration->entries == NULL)
        return 0;
    const uint64_t id = enumeration->fieldMask & NVTX_PAYLOAD_ENUM_ATTR_FIELD_SCHEMA_ID
                            ? enumeration->schemaId
                            : atomic_fetch_add_explicit(&next_schema, 1, memory_order_relaxed);
    define(DEFINE_ENUM, domain_number(domain), id, describe_enum, enumeration);
    return id;
}

static void on_mark_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t *payloads, size_t count)
{
    record_payloads(EVENT_MARK, domain, 0, payloads, count, 0);
}

static int on_range_push_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t *payloads, size_t count)
{
    record_payloads(EVENT_PUSH, domain, 0, payloads, count, 0);
    return NVTX_NO_PUSH_POP_TRACKING;
}

static int on_range_pop_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t *payloads, size_t count)
{
    record_payloads(EVENT_POP, domain, 0, payloads, count, clock_ns(CLOCK_MONOTONIC));
    return NVTX_NO_PUSH_POP_TRACKING;
}

static nvtxRangeId_t on_range_start_payload(nvtxDomainHandle_t domain, const nvtxPayloadData_t *payloads, size_t count)
{
    const nvtxRangeId_t id = new_range();
    record_payloads(EVENT_START, domain, id, payloads, count, 0);
    return id;
}

static void on_range_end_payload(nvtxDomainHandle_t domain, nvtxRangeId_t id, const nvtxPayloadData_t *payloads,
                                 size_t count)
{
    record_payloads(EVENT_END, domain, id, payloads, count, clock_ns(CLOCK_MONOTONIC));
}

static int64_t on_timestamp_get(void)
{
    return (int64_t)clock_ns(CLOCK_MONOTONIC);
}

/* ---- attaching ------------------------------------------------------------------------------------------------------- */

struct callback {
    unsigned int id;
    NvtxFunctionPointer function;
};

#define CALLBACK(id, function) {id, (NvtxFunctionPointer)(function)}

static const struct callback core_callbacks[] = {
    CALLBACK(NVTX_CBID_CORE_MarkEx, on_mark_ex),
    CALLBACK(NVTX_CBID_CORE_MarkA, on_mark_a),
    CALLBACK(NVTX_CBID_CORE_MarkW, on_mark_w),
    CALLBACK(NVTX_CBID_CORE_RangeStartEx, on_range_start_ex),
    CALLBACK(NVTX_CBID_CORE_RangeStartA, on_range_start_a),
    CALLBACK(NVTX_CBID_CORE_RangeStartW, on_range_start_w),
    CALLBACK(NVTX_CBID_CORE_RangeEnd, on_range_end),
    CALLBACK(NVTX_CBID_CORE_RangePushEx, on_range_push_ex),
    CALLBACK(NVTX_CBID_CORE_RangePushA, on_range_push_a),
    CALLBACK(NVTX_CBID_CORE_RangePushW, on_range_push_w),
    CALLBACK(NVTX_CBID_CORE_RangePop, on_range_pop),
    CALLBACK(NVTX_CBID_CORE_NameCategoryA, on_name_category_a),
    CALLBACK(NVTX_CBID_CORE_NameCategoryW, on_name_category_w),
    CALLBACK(NVTX_CBID_CORE_NameOsThreadA, on_name_thread_a),
    CALLBACK(NVTX_CBID_CORE_NameOsThreadW, on_name_thread_w),
};

static const struct callback domain_callbacks[] = {
    CALLBACK(NVTX_CBID_CORE2_DomainMarkEx, on_domain_mark_ex),
    CALLBACK(NVTX_CBID_CORE2_DomainRangeStartEx, on_domain_range_start_ex),
    CALLBACK(NVTX_CBID_CORE2_DomainRangeEnd, on_domain_range_end),
    CALLBACK(NVTX_CBID_CORE2_DomainRangePushEx, on_domain_range_push_ex),
    CALLBACK(NVTX_CBID_CORE2_DomainRangePop, on_domain_range_pop),
    CALLBACK(NVTX_CBID_CORE2_DomainNameCategoryA, on_domain_name_category_a),
    CALLBACK(NVTX_CBID_CORE2_DomainNameCategoryW, on_domain_name_category_w),
    CALLBACK(NVTX_CBID_CORE2_DomainRegisterStringA, on_register_string_a),
    CALLBACK(NVTX_CBID_CORE2_DomainRegisterStringW, on_register_string_w),
    CALLBACK(NVTX_CBID_CORE2_DomainCreateA, on_domain_create_a),
    CALLBACK(NVTX_CBID_CORE2_DomainCreateW, on_domain_create_w),
};

static const struct callback payload_callbacks[] = {
    CALLBACK(NVTX3EXT_CBID_nvtxPayloadSchemaRegister, on_schema_register),
    CALLBACK(NVTX3EXT_CBID_nvtxPayloadEnumRegister, on_enum_register),
    CALLBACK(NVTX3EXT_CBID_nvtxMarkPayload, on_mark_payload),
    CALLBACK(NVTX3EXT_CBID_nvtxRangePushPayload, on_range_push_payload),
    CALLBACK(NVTX3EXT_CBID_nvtxRangePopPayload, on_range_pop_payload),
    CALLBACK(NVTX3EXT_CBID_nvtxRangeStartPayload, on_range_start_payload),
    CALLBACK(NVTX3EXT_CBID_nvtxRangeEndPayload, on_range_end_payload),
    CALLBACK(NVTX3EXT_CBID_nvtxTimestampGet, on_timestamp_get),
};

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static int attach(const NvtxExportTableCallbacks *table, NvtxCallbackModule module, const struct callback *callbacks,
                  size_t count)
{
    NvtxFunctionTable functions = NULL;
    unsigned int size = 0;
    if (!table->GetModuleFunctionTable(module, &functions, &size) || functions == NULL)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (callbacks[i].id < size)
            *functions[callbacks[i].id] = callbacks[i].function;
    return 1;
}

/* Opens the file already here: its existence tells mtpprof that the library was loaded. */
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_up_once);
    const NvtxExportTableCallbacks *table = get_export_table(NVTX_ETID_CALLBACKS);
    if (table == NULL)
        return 0;
    pthread_mutex_lock(&process.lock);
    const int opened = open_process_file();
    pthread_mutex_unlock(&process.lock);
    return opened && attach(table, NVTX_CB_MODULE_CORE, core_callbacks, LENGTH(core_callbacks)) &&
           attach(table, NVTX_CB_MODULE_CORE2, domain_callbacks, LENGTH(domain_callbacks));
}

__attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module)
{
    if (module->moduleId != NVTX_EXT_PAYLOAD_MODULEID || module->segmentsCount == 0)
        return 0;
    nvtxExtModuleSegment_t *slots = &module->segments[0];
    for (size_t i = 0; i < LENGTH(payload_callbacks); i++)
        if (payload_callbacks[i].id < slots->slotCount)
            slots->functionSlots[payload_callbacks[i].id] = (intptr_t)payload_callbacks[i].function;
    return 1;
}
