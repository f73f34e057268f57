/*
 * The process's file: created once, grown by chunks, without a lock.
 *
 * The state of a process lies in memory that the kernel wipes in every child (MADV_WIPEONFORK), so a child begins anew whichever way it
 * was forked; `pthread_atfork` would not see a raw fork or clone. The file is opened again for each chunk: programs that close all
 * descriptors at start would otherwise make us write into whatever file got the number.
 */
#define _GNU_SOURCE
#include "capture.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PARKED_MAX = 64 };
enum { NEW = 0, STARTING = 1, READY = 2, REFUSED = 3 };
#define START_WAIT_NS 50000000u
#define PATH_BYTES 4096

struct process {
    _Atomic uint32_t generation; /* 0 until the file is there */
    _Atomic uint32_t state;
    struct file_header *header;
    _Atomic uint64_t end_bytes;
    uint64_t limit_bytes;
    _Atomic uint64_t early_lost[LOSS_KINDS]; /* before the file was there */
    struct chunk_header *_Atomic parked_events[PARKED_MAX];
    struct chunk_header *_Atomic parked_definitions[PARKED_MAX];
    char path[PATH_BYTES];
};

static struct process *process; /* wiped in children */
static _Atomic uint32_t last_generation; /* not wiped: a child's number differs from its parent's */
static char own_path[PATH_BYTES];   /* not wiped: in a child the parent's file, whose definitions the child inherits */

/* ---- small things ---------------------------------------------------------------------------------------------------- */

uint64_t clock_ns(clockid_t clock)
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

size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static size_t page_bytes(void)
{
    const long size = sysconf(_SC_PAGESIZE);
    return size > 0 ? (size_t)size : 4096;
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

/* Signals that a fault of the thread itself raises must stay open: blocked, they would end the program without its handler. */
void begin_undisturbed(struct disturbance *saved)
{
    static const int own_faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
    sigset_t all;
    saved->saved_errno = errno;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &saved->cancel_state);
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own_faults / sizeof *own_faults; i++)
        sigdelset(&all, own_faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &saved->signals);
}

void end_undisturbed(const struct disturbance *saved)
{
    pthread_sigmask(SIG_SETMASK, &saved->signals, NULL);
    pthread_setcancelstate(saved->cancel_state, NULL);
    errno = saved->saved_errno;
}

static enum loss loss_of(int error)
{
    switch (error) {
    case ENOSPC:
    case EDQUOT:
        return LOST_TO_DISK;
    case EMFILE:
    case ENFILE:
        return LOST_TO_DESCRIPTORS;
    case ENOMEM:
        return LOST_TO_MEMORY;
    case EFBIG:
        return LOST_TO_LIMIT;
    default:
        return LOST_TO_FILE;
    }
}

/* Says why nothing is recorded, if stderr takes it at once: a full pipe must not stop the program. */
static void say(const char *what, int error)
{
    char text[PATH_BYTES + 256];
    const int length = snprintf(text, sizeof text, "mtpprof: NVTX is not recorded in process %d: %s: %s\n", (int)getpid(), what,
                                strerror(error));
    struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (length > 0 && poll(&ready, 1, 0) == 1 && (ready.revents & POLLOUT)) {
        const size_t bytes = (size_t)length < sizeof text ? (size_t)length : sizeof text - 1;
        if (write(STDERR_FILENO, text, bytes) < 0)
            return;
    }
}

/* ---- chunks ---------------------------------------------------------------------------------------------------------- */

/* Growing a file past RLIMIT_FSIZE sends SIGXFSZ, which ends the program: it is blocked here, and taken back. */
static void take_back_file_size_signal(void)
{
    sigset_t only;
    const struct timespec at_once = {0, 0};
    sigemptyset(&only);
    sigaddset(&only, SIGXFSZ);
    while (sigtimedwait(&only, NULL, &at_once) > 0)
        ;
}

/* Disk space is reserved before it is mapped: writing to a mapped page of a full disk would kill the program. */
static void *map_file_part(int file, uint64_t offset, size_t bytes)
{
    struct rlimit size_limit;
    if (getrlimit(RLIMIT_FSIZE, &size_limit) == 0 && offset + bytes > size_limit.rlim_cur) {
        errno = EFBIG;
        return NULL;
    }
    const int error = posix_fallocate(file, (off_t)offset, (off_t)bytes);
    if (error != 0) {
        if (error == EFBIG)
            take_back_file_size_signal();
        errno = error;
        return NULL;
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, (off_t)offset);
    return at == MAP_FAILED ? NULL : at;
}

/* Moves the end of the file; 0 where that would pass the limit. */
static uint64_t reserve(size_t bytes)
{
    uint64_t end = atomic_load_explicit(&process->end_bytes, memory_order_relaxed);
    do {
        if (end + bytes > process->limit_bytes)
            return 0;
    } while (!atomic_compare_exchange_weak(&process->end_bytes, &end, end + bytes));
    return end;
}

static void publish_end(uint64_t end)
{
    uint64_t seen = atomic_load_explicit(&process->header->end_bytes, memory_order_relaxed);
    while (seen < end && !atomic_compare_exchange_weak(&process->header->end_bytes, &seen, end))
        ;
}

struct chunk_header *new_chunk(uint32_t kind, size_t bytes, enum loss *why)
{
    const size_t page = page_bytes();
    bytes = round_up(bytes, CHUNK_BYTES_MIN > page ? CHUNK_BYTES_MIN : page);
    const uint64_t offset = reserve(bytes);
    if (offset == 0) {
        *why = LOST_TO_LIMIT;
        return NULL;
    }
    struct chunk_header *chunk = NULL;
    const int file = open(process->path, O_RDWR | O_CLOEXEC);
    if (file >= 0)
        chunk = map_file_part(file, offset, bytes);
    if (chunk == NULL) {
        *why = loss_of(errno);
        /* Given back if nobody reserved behind it; else the reader steps over the hole. */
        uint64_t end = offset + bytes;
        atomic_compare_exchange_strong(&process->end_bytes, &end, offset);
    }
    if (file >= 0)
        close(file);
    if (chunk == NULL)
        return NULL;
    chunk->kind = kind;
    chunk->chunk_bytes = bytes;
    chunk->thread_id = (uint64_t)syscall(SYS_gettid);
    sample_clocks(&chunk->monotonic_ns, &chunk->realtime_ns, &chunk->uncertainty_ns);
    prctl(PR_GET_NAME, chunk->thread_name, 0, 0, 0);
    chunk->back = bytes;
    atomic_thread_fence(memory_order_release);
    chunk->magic = CHUNK_MAGIC;
    publish_end(offset + bytes);
    return chunk;
}

void unmap_chunk(struct chunk_header *chunk)
{
    munmap(chunk, chunk->chunk_bytes);
}

static struct chunk_header *_Atomic *parking(uint32_t kind)
{
    return kind == CHUNK_EVENTS ? process->parked_events : process->parked_definitions;
}

struct chunk_header *take_parked_chunk(uint32_t kind)
{
    struct chunk_header *_Atomic *places = parking(kind);
    for (int i = 0; i < PARKED_MAX; i++) {
        if (atomic_load_explicit(&places[i], memory_order_relaxed) == NULL)
            continue;
        struct chunk_header *chunk = atomic_exchange_explicit(&places[i], NULL, memory_order_acquire);
        if (chunk != NULL)
            return chunk;
    }
    return NULL;
}

void park_chunk(struct chunk_header *chunk)
{
    struct chunk_header *_Atomic *places = parking(chunk->kind);
    for (int i = 0; i < PARKED_MAX; i++) {
        struct chunk_header *nothing = NULL;
        if (atomic_load_explicit(&places[i], memory_order_relaxed) == NULL &&
            atomic_compare_exchange_strong_explicit(&places[i], &nothing, chunk, memory_order_release, memory_order_relaxed))
            return;
    }
    unmap_chunk(chunk);
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */

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
        const int length =
            snprintf(process->path, sizeof process->path, "%s/%spid%d%s.nvtx", directory, prefix, (int)getpid(), suffix);
        if (length < 0 || (size_t)length >= sizeof process->path) {
            errno = ENAMETOOLONG;
            return -1;
        }
        const int file = open(process->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        if (file >= 0 || errno != EEXIST)
            return file;
    }
    return -1;
}

/* Brings the definitions of the process that this one was forked from into its own file. */
static void copy_definitions_from(const char *path)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
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
        if (chunk.magic != CHUNK_MAGIC) {
            offset += page_bytes();
            continue;
        }
        if (chunk.chunk_bytes < sizeof chunk)
            break;
        const uint64_t used = chunk.used;
        if (chunk.kind == CHUNK_DEFINITIONS && used > 0 && used <= chunk.chunk_bytes - sizeof chunk) {
            enum loss why;
            struct chunk_header *copy = new_chunk(CHUNK_DEFINITIONS, sizeof chunk + used, &why);
            if (copy == NULL)
                break;
            if (pread(file, copy + 1, used, (off_t)(offset + sizeof chunk)) == (ssize_t)used)
                atomic_store_explicit(&copy->used, used, memory_order_release);
            unmap_chunk(copy);
        }
        offset += chunk.chunk_bytes;
    }
    close(file);
}

static int create_process_file(int *error)
{
    const char *directory = getenv("MTPPROF_NVTX_DIR");
    if (directory == NULL || *directory == '\0') {
        *error = ENOENT;
        snprintf(process->path, sizeof process->path, "MTPPROF_NVTX_DIR is not set");
        return 0;
    }
    const int32_t rank = environment_rank();
    const int file = create_file(directory, rank);
    if (file < 0) {
        *error = errno;
        return 0;
    }
    const size_t header_bytes = page_bytes();
    struct file_header *header = map_file_part(file, 0, header_bytes);
    *error = errno;
    close(file);
    if (header == NULL) {
        unlink(process->path);
        return 0;
    }
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
    process->limit_bytes = environment_number("MTPPROF_NVTX_MAX_BYTES", FILE_BYTES_MAX);
    process->header = header;
    atomic_store(&process->end_bytes, header_bytes);
    return 1;
}

static void start(void)
{
    int error = 0;
    if (!create_process_file(&error)) {
        /* What may pass is tried again: no free descriptor, no space. What cannot be written to is refused for good, and said. */
        const int passes = loss_of(error) != LOST_TO_FILE;
        if (!passes)
            say(process->path, error);
        atomic_store_explicit(&process->state, passes ? NEW : REFUSED, memory_order_release);
        return;
    }
    if (own_path[0] != '\0')
        copy_definitions_from(own_path);
    memcpy(own_path, process->path, sizeof own_path);
    atomic_store_explicit(&process->generation, atomic_fetch_add(&last_generation, 1) + 1, memory_order_relaxed);
    atomic_store_explicit(&process->state, READY, memory_order_release);
    for (int kind = 0; kind < LOSS_KINDS; kind++) {
        const uint64_t early = atomic_exchange(&process->early_lost[kind], 0);
        if (early > 0)
            count_lost((enum loss)kind, early);
    }
}

/* Another thread creates the file right now: it is waited for, but not for long, whatever became of it. */
static uint32_t wait_for_start(void)
{
    const uint64_t until = clock_ns(CLOCK_MONOTONIC) + START_WAIT_NS;
    uint32_t state;
    while ((state = atomic_load_explicit(&process->state, memory_order_acquire)) == STARTING && clock_ns(CLOCK_MONOTONIC) < until)
        sched_yield();
    return state;
}

int open_process_file(enum loss *why)
{
    uint32_t state = atomic_load_explicit(&process->state, memory_order_acquire);
    uint32_t expected = NEW;
    if (state == NEW && atomic_compare_exchange_strong(&process->state, &expected, STARTING)) {
        start();
        state = atomic_load_explicit(&process->state, memory_order_acquire);
        *why = state == REFUSED ? LOST_TO_FILE : LOST_TO_DESCRIPTORS;
        return state == READY;
    }
    if (state != READY && state != REFUSED)
        state = wait_for_start();
    *why = state == REFUSED ? LOST_TO_FILE : LOST_AT_START;
    return state == READY;
}

void count_lost(enum loss why, uint64_t events)
{
    if (atomic_load_explicit(&process->state, memory_order_acquire) != READY) {
        atomic_fetch_add_explicit(&process->early_lost[why], events, memory_order_relaxed);
        return;
    }
    atomic_fetch_add_explicit(&process->header->lost[why], events, memory_order_relaxed);
    atomic_fetch_add_explicit(&process->header->dropped_events, events, memory_order_relaxed);
}

uint32_t process_generation(void)
{
    return atomic_load_explicit(&process->generation, memory_order_relaxed);
}

static void wipe_in_child(void)
{
    memset(process, 0, sizeof *process);
}

int set_up_process(void)
{
    void *at = mmap(NULL, round_up(sizeof *process, page_bytes()), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return 0;
    process = at;
    /* Kernels before 4.14 cannot wipe: there a fork through the C library is seen, a raw one is not. */
    if (madvise(at, round_up(sizeof *process, page_bytes()), MADV_WIPEONFORK) != 0)
        pthread_atfork(NULL, NULL, wipe_in_child);
    return 1;
}

__attribute__((destructor)) static void close_process_file(void)
{
    if (process == NULL || atomic_load_explicit(&process->state, memory_order_acquire) != READY)
        return;
    struct file_header *header = process->header;
    uint64_t monotonic;
    sample_clocks(&monotonic, &header->closed_realtime_ns, &header->closed_uncertainty_ns);
    header->closed_monotonic_ns = monotonic;
}
