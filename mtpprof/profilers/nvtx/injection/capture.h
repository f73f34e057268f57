/*
 * Records a process's NVTX calls into a file, without Nsight and without a GPU.
 *
 *   entry.c      NVTX loads the library and gets its callbacks
 *   callbacks.c  one function per NVTX call
 *   registry.c   names, strings, schemas
 *   buffer.c     events, each into the chunk of its thread
 *   file.c       the process's file and its chunks
 *
 * The library runs inside other people's processes, so four rules hold everywhere:
 *
 * 1. No lock is held by anybody, ever: space is reserved with one atomic addition, and each thread writes into chunks of its own.
 *    So a thread that is cancelled, killed or jumps out of a signal handler stops nobody.
 * 2. An event is a copy into the thread's chunk and one store of the chunk's count: no system call. Whatever was counted is in the
 *    page cache, so SIGKILL loses no finished event.
 * 3. System calls (a new chunk, a definition) run with cancellation off and signals blocked.
 * 4. Every size that the program gives is bounded before it is used, and read once.
 *
 * An error of the environment loses events, never the program. What is lost is counted by reason, and the next chunk is tried again.
 */
#ifndef MTPPROF_NVTX_CAPTURE_H
#define MTPPROF_NVTX_CAPTURE_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "format.h"

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>

/* ---- file.c ---------------------------------------------------------------------------------------------------------- */

/* Number of the process state that a thread's chunk belongs to; 0: there is none yet. It changes with every fork, raw ones too. */
uint32_t process_generation(void);

/* Prepares what outlives single events; once per process image. Returns 0 where memory cannot be had. */
int set_up_process(void);

/* Creates this process's file if it has none. Returns 0, with the reason, where there is none. Only between begin_ and end_undisturbed. */
int open_process_file(enum loss *why);

/* Reserves and maps a chunk of at least `bytes`; NULL, with the reason, where it cannot be had. Only between begin_ and end_undisturbed. */
struct chunk_header *new_chunk(uint32_t kind, size_t bytes, enum loss *why);

/* A chunk that a thread left with room in it; NULL: there is none. */
struct chunk_header *take_parked_chunk(uint32_t kind);

/* Gives a chunk with room to whichever thread comes next, or unmaps it. */
void park_chunk(struct chunk_header *chunk);

void unmap_chunk(struct chunk_header *chunk);

void count_lost(enum loss why, uint64_t events);

uint64_t clock_ns(clockid_t clock);

size_t round_up(size_t bytes, size_t unit);

struct disturbance {
    sigset_t signals;
    int cancel_state;
    int saved_errno;
};

/* No cancellation and no signal handler until the end: what runs in between may make system calls. */
void begin_undisturbed(struct disturbance *saved);
void end_undisturbed(const struct disturbance *saved);

/* ---- buffer.c -------------------------------------------------------------------------------------------------------- */

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

/* `now`: 0 takes the time after the copy, so that a range does not contain our own work at its start. */
void record(const struct request *request, uint64_t now);

void set_up_threads(void);

/* ---- registry.c ------------------------------------------------------------------------------------------------------ */

struct writer;
typedef void describe_function(struct writer *, const void *);

void define(uint16_t kind, uint16_t domain, uint64_t id, describe_function *describe, const void *what);

void describe_text(struct writer *to, const void *text);
void describe_schema(struct writer *to, const void *schema);
void describe_enum(struct writer *to, const void *enumeration);

/* ---- callbacks.c ----------------------------------------------------------------------------------------------------- */

struct callback {
    unsigned int id;
    NvtxFunctionPointer function;
};

extern const struct callback core_callbacks[], domain_callbacks[], payload_callbacks[];
extern const size_t core_callback_count, domain_callback_count, payload_callback_count;

#endif
