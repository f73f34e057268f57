/*
 * Events: each into the chunk of its thread. Chunks are slotted pages: fixed 32-byte events grow from the front, the variable part of
 * an event (inline text, payload) grows from the back.
 *
 * A chunk of a thread that ends goes to the next thread that begins, so many short threads fill as much of the file as one long one.
 */
#define _GNU_SOURCE
#include "capture.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GAP_DOMAINS 32
#define RETRY_FIRST_NS 100000u
#define RETRY_LAST_NS 100000000u

/* What a thread missed while it had no chunk, by domain. Written down when it has one again, so that no later pop closes a wrong push. */
struct gaps {
    uint32_t domains;
    struct {
        uint16_t domain;
        uint32_t closed, opened;
    } of[GAP_DOMAINS];
};

/* What belongs to one thread; small, since it lies in the static part of thread-local storage: the dynamic part may be allocated, and
 * the first event of a thread may come from a signal handler. */
static _Thread_local struct {
    volatile uintptr_t busy;     /* the frame that writes an event right now; 0: none does */
    struct chunk_header *chunk;
    uint32_t front;              /* where the next event goes */
    uint32_t back;               /* where the blobs begin */
    uint32_t generation;         /* of the process state that `chunk` belongs to; 0: no chunk */
    uint8_t deaf;                /* missed more domains than can be written down: nothing more is recorded */
    uint8_t failures;            /* how often no chunk could be had in a row */
    uint8_t failed_by;           /* the last time by what, an `enum loss` */
    uint64_t retry_at_ns;
    struct gaps *gaps;
} thread __attribute__((tls_model("initial-exec")));

static pthread_key_t thread_key;

static void leave_thread(void *unused)
{
    (void)unused;
    struct disturbance saved;
    begin_undisturbed(&saved);
    if (thread.chunk != NULL) {
        const size_t used = sizeof *thread.chunk + thread.chunk->used * sizeof(struct event);
        const int room = thread.back >= used + 16 * sizeof(struct event);
        thread.chunk->back = thread.back;
        if (room && thread.generation == process_generation())
            park_chunk(thread.chunk);
        else
            unmap_chunk(thread.chunk);
    }
    if (thread.gaps != NULL)
        munmap(thread.gaps, sizeof *thread.gaps);
    thread.chunk = NULL;
    thread.gaps = NULL;
    thread.generation = 0;
    end_undisturbed(&saved);
}

void set_up_threads(void)
{
    pthread_key_create(&thread_key, leave_thread);
}

/* ---- the variable part of an event ----------------------------------------------------------------------------------- */

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

/* Bytes of one payload as the program says. Only a C string may leave them to be found (SIZE_MAX). */
static size_t payload_bytes(const nvtxPayloadData_t *payload)
{
    if (payload->payload == NULL)
        return 0;
    if (payload->size != SIZE_MAX)
        return payload->size;
    return is_c_string(payload->schemaId) ? strnlen(payload->payload, TEXT_BYTES_MAX) : 0;
}

/* The payloads of an event, measured once: another thread may change a text between two looks at it. */
struct measured {
    size_t count;
    size_t bytes; /* of all, as they are stored */
    struct blob_payload heads[PAYLOADS_MAX];
};

static void measure_payloads(const struct request *request, struct measured *to)
{
    to->count = request->payloads == NULL ? 0 : request->payload_count;
    if (to->count > PAYLOADS_MAX)
        to->count = PAYLOADS_MAX;
    to->bytes = sizeof(uint64_t) + to->count * sizeof(struct blob_payload);
    size_t kept = 0;
    for (size_t i = 0; i < to->count; i++) {
        const size_t size = payload_bytes(&request->payloads[i]);
        const size_t stored = size <= BLOB_BYTES_MAX - kept ? size : 0;
        kept += round_up(stored, 8);
        if (kept > BLOB_BYTES_MAX)
            kept = BLOB_BYTES_MAX;
        to->heads[i] = (struct blob_payload){request->payloads[i].schemaId, size > UINT32_MAX ? UINT32_MAX : (uint32_t)size,
                                             (uint32_t)stored};
        to->bytes += round_up(stored, 8);
    }
}

static void store_payloads(char *at, const struct request *request, const struct measured *measured)
{
    const uint64_t count = measured->count;
    memcpy(at, &count, sizeof count);
    at += sizeof count;
    for (size_t i = 0; i < count; i++) {
        const struct blob_payload *head = &measured->heads[i];
        memcpy(at, head, sizeof *head);
        at += sizeof *head;
        if (head->stored_bytes > 0)
            memcpy(at, request->payloads[i].payload, head->stored_bytes);
        at += round_up(head->stored_bytes, 8);
    }
}

/* ---- chunks of a thread ---------------------------------------------------------------------------------------------- */

static struct event *append(const struct request *request, size_t blob)
{
    char *base = (char *)thread.chunk;
    struct event *event = (struct event *)(base + thread.front);
    *event = (struct event){
        .value = has_range_id(request) ? request->range_id : request->value,
        .message = request->message,
        .category = request->category,
        .domain = request->domain,
        .text_bytes = (uint16_t)request->text_bytes,
        .kind = request->kind,
        .payload_type = request->payload_type,
    };
    if (blob > 0) {
        thread.back -= (uint32_t)blob;
        event->blob = (uint16_t)(thread.back / 8);
        if (request->text_bytes > 0)
            memcpy(base + thread.back, request->text, request->text_bytes);
    }
    thread.front += sizeof *event;
    return event;
}

static void publish(struct event *event, uint64_t now)
{
    event->monotonic_ns = now != 0 ? now : clock_ns(CLOCK_MONOTONIC);
    atomic_store_explicit(&thread.chunk->used, (thread.front - sizeof *thread.chunk) / sizeof *event, memory_order_release);
}

static int has_room(size_t events, size_t blob)
{
    return thread.front + events * sizeof(struct event) + blob <= thread.back;
}

/* How many events stand before those of the program in a chunk: who the thread is, and what it missed. */
static size_t preamble(void)
{
    return 1 + (thread.gaps == NULL ? 0 : thread.gaps->domains);
}

static void write_preamble(int of_another_thread)
{
    if (of_another_thread) {
        char name[16] = "";
        prctl(PR_GET_NAME, name, 0, 0, 0);
        const struct request who = {.kind = EVENT_THREAD,
                                    .value = (uint64_t)syscall(SYS_gettid),
                                    .text = name,
                                    .text_bytes = strnlen(name, sizeof name)};
        publish(append(&who, sizeof name), 0);
    }
    for (uint32_t i = 0; thread.gaps != NULL && i < thread.gaps->domains; i++) {
        const uint64_t value = (uint64_t)thread.gaps->of[i].closed << 32 | thread.gaps->of[i].opened;
        publish(append(&(struct request){.kind = EVENT_LOST, .domain = thread.gaps->of[i].domain, .value = value}, 0), 0);
    }
    if (thread.gaps != NULL)
        thread.gaps->domains = 0;
}

static void adopt(struct chunk_header *chunk)
{
    thread.chunk = chunk;
    thread.front = (uint32_t)(sizeof *chunk + chunk->used * sizeof(struct event));
    thread.back = (uint32_t)chunk->back;
    thread.generation = process_generation();
}

/* Gives the thread a chunk with room for an event and `blob` bytes; chunks of a thread double up to the largest. */
static int next_chunk(size_t blob, enum loss *why)
{
    const size_t needed = sizeof(struct chunk_header) + (preamble() + 1) * sizeof(struct event) + 16 + blob;
    size_t bytes = thread.chunk == NULL ? CHUNK_BYTES_MIN : thread.chunk->chunk_bytes * 2;
    const int was_without = thread.chunk == NULL;
    if (!open_process_file(why))
        return 0;
    struct chunk_header *chunk = was_without ? take_parked_chunk(CHUNK_EVENTS) : NULL;
    if (chunk != NULL) {
        adopt(chunk);
        if (has_room(preamble() + 1, 16 + blob)) {
            write_preamble(1);
            pthread_setspecific(thread_key, &thread);
            return 1;
        }
        unmap_chunk(chunk);
        thread.chunk = NULL;
        thread.generation = 0;
    }
    while (bytes < needed)
        bytes *= 2;
    if (bytes > CHUNK_BYTES_MAX)
        bytes = CHUNK_BYTES_MAX;
    chunk = new_chunk(CHUNK_EVENTS, bytes, why);
    if (chunk == NULL && bytes > CHUNK_BYTES_MIN && needed <= CHUNK_BYTES_MIN) {
        chunk = new_chunk(CHUNK_EVENTS, CHUNK_BYTES_MIN, why); /* the last bit before the limit */
    }
    if (chunk == NULL)
        return 0;
    if (thread.chunk != NULL)
        unmap_chunk(thread.chunk);
    adopt(chunk);
    write_preamble(0);
    pthread_setspecific(thread_key, &thread);
    return 1;
}

/* ---- what cannot be recorded ----------------------------------------------------------------------------------------- */

static void remember_gap(const struct request *request)
{
    if (request->kind != EVENT_PUSH && request->kind != EVENT_POP)
        return; /* starts and ends are matched by their number */
    if (thread.gaps == NULL) {
        void *at = mmap(NULL, sizeof *thread.gaps, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED) {
            thread.deaf = 1;
            return;
        }
        thread.gaps = at;
        pthread_setspecific(thread_key, &thread);
    }
    uint32_t i = 0;
    while (i < thread.gaps->domains && thread.gaps->of[i].domain != request->domain)
        i++;
    if (i == GAP_DOMAINS) {
        thread.deaf = 1;
        return;
    }
    if (i == thread.gaps->domains) {
        thread.gaps->of[i].domain = request->domain;
        thread.gaps->of[i].closed = thread.gaps->of[i].opened = 0;
        thread.gaps->domains++;
    }
    if (request->kind == EVENT_PUSH)
        thread.gaps->of[i].opened++;
    else if (thread.gaps->of[i].opened > 0)
        thread.gaps->of[i].opened--;
    else
        thread.gaps->of[i].closed++;
}

/* An event that finds no room. A pop that still fitted into the old chunk would be taken for that of an earlier push. */
static int lose(const struct request *request, enum loss why)
{
    count_lost(why, 1);
    if (!thread.deaf)
        remember_gap(request);
    thread.back = thread.front;
    return 0;
}

/* After a failure the next attempt waits, longer each time: an attempt costs system calls. */
static void put_off(enum loss why)
{
    const uint64_t delay = (uint64_t)RETRY_FIRST_NS << (thread.failures < 10 ? thread.failures : 10);
    thread.retry_at_ns = clock_ns(CLOCK_MONOTONIC) + (delay < RETRY_LAST_NS ? delay : RETRY_LAST_NS);
    thread.failures += thread.failures < UINT8_MAX;
    thread.failed_by = (uint8_t)why;
}

/* Takes a new chunk, or counts the event as lost; returns whether there is room now. */
static int make_room(const struct request *request, size_t blob)
{
    if (thread.generation != 0 && thread.generation != process_generation()) { /* a forked child begins anew */
        thread.retry_at_ns = thread.failures = thread.deaf = 0;
        if (thread.gaps != NULL)
            thread.gaps->domains = 0;
    }
    if (thread.deaf || (thread.retry_at_ns != 0 && clock_ns(CLOCK_MONOTONIC) < thread.retry_at_ns))
        return lose(request, (enum loss)thread.failed_by);
    struct disturbance saved;
    enum loss why = LOST_TO_FILE;
    begin_undisturbed(&saved);
    const int found = next_chunk(blob, &why);
    if (found)
        thread.retry_at_ns = thread.failures = 0;
    else
        put_off(why);
    end_undisturbed(&saved);
    return found || lose(request, why);
}

/*
 * Whether a signal handler interrupted this thread amid an event that will go on. A handler's frame lies below the one that it
 * interrupted, or on a signal stack; otherwise the interrupted frame is gone: a handler jumped out of it.
 */
static int interrupted(uintptr_t frame)
{
    stack_t stack;
    if (thread.busy == 0)
        return 0;
    return frame < thread.busy || (sigaltstack(NULL, &stack) == 0 && (stack.ss_flags & SS_ONSTACK));
}

__attribute__((noinline)) void record(const struct request *request, uint64_t now)
{
    const uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
    if (interrupted(frame)) {
        count_lost(LOST_IN_HANDLER, 1);
        return;
    }
    thread.busy = frame;
    size_t blob = round_up(request->text_bytes, 8) + (has_value_in_blob(request) ? sizeof request->value : 0);
    struct measured measured;
    if (request->payload_type == PAYLOAD_EXTENDED) {
        measure_payloads(request, &measured);
        blob += measured.bytes;
    }
    const int stale = thread.generation != process_generation() || thread.generation == 0;
    if ((!stale && has_room(1, blob)) || make_room(request, blob)) {
        struct event *event = append(request, blob);
        char *at = (char *)thread.chunk + thread.back + round_up(request->text_bytes, 8);
        if (has_value_in_blob(request))
            memcpy(at, &request->value, sizeof request->value);
        if (request->payload_type == PAYLOAD_EXTENDED)
            store_payloads(at, request, &measured);
        publish(event, now);
    }
    thread.busy = 0;
}
