/*
 * The layout of a capture file. mtpprof/nvtxformat.py holds the same layout for the reader.
 *
 * A file holds one process: a header of one page, then chunks of whole 16 KiB. Chunks are reserved by moving `end_bytes`, without
 * a lock. A chunk whose owner could not map it stays zero; the reader steps over it.
 */
#ifndef MTPPROF_NVTX_FORMAT_H
#define MTPPROF_NVTX_FORMAT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <wchar.h>

#define FORMAT_MAGIC "MTPNVTX"
#define FORMAT_VERSION 2
#define BYTE_ORDER_MARK 0x01020304u
#define CHUNK_MAGIC 0x4b4e4843u /* "CHNK" */

enum { CHUNK_EVENTS = 1, CHUNK_DEFINITIONS = 2 };
enum {
    EVENT_PUSH = 1,
    EVENT_POP = 2,
    EVENT_START = 3,
    EVENT_END = 4,
    EVENT_MARK = 5,
    EVENT_THREAD = 6, /* events after it in its chunk are of thread `value`; its text is the thread's name */
    EVENT_LOST = 7    /* events of the thread are missing here: `value` is pops that found no record << 32 | pushes still open */
};
enum { PAYLOAD_NONE = 0, PAYLOAD_EXTENDED = 7 }; /* 1 to 6: nvtxPayloadType_t */
enum { DEFINE_DOMAIN = 1, DEFINE_STRING = 2, DEFINE_CATEGORY = 3, DEFINE_THREAD = 4, DEFINE_SCHEMA = 5, DEFINE_ENUM = 6 };

/* Why events were not recorded; positions in `file_header.lost`. */
enum loss {
    LOST_TO_LIMIT,       /* the file's own limit, or RLIMIT_FSIZE */
    LOST_TO_DISK,        /* ENOSPC, EDQUOT */
    LOST_TO_DESCRIPTORS, /* EMFILE, ENFILE */
    LOST_TO_MEMORY,      /* ENOMEM: mmap */
    LOST_TO_FILE,        /* any other error of the file: removed, read-only, unreachable */
    LOST_IN_HANDLER,     /* an event in a signal handler that interrupted another event of its thread */
    LOST_AT_START,       /* another thread was still creating the file */
    LOSS_KINDS = 8
};

/* Blob positions are 16-bit numbers of 8-byte units, so a chunk has at most 512 KiB. */
#define CHUNK_BYTES_MAX ((size_t)512 << 10)
#define CHUNK_BYTES_MIN ((size_t)16 << 10)
#define TEXT_BYTES_MAX ((size_t)32 << 10)
#define BLOB_BYTES_MAX ((size_t)128 << 10)
#define DEFINITION_BYTES_MAX ((size_t)4 << 20)
#define SCHEMA_ENTRIES_MAX ((size_t)65536)
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
    _Atomic uint64_t dropped_events; /* the sum of `lost` */
    char host[64];
    char command[256];
    _Atomic uint64_t lost[LOSS_KINDS];
};

struct chunk_header {
    uint32_t magic;
    uint32_t kind;
    uint64_t chunk_bytes;
    uint64_t thread_id; /* of the first events; an EVENT_THREAD changes it */
    uint64_t monotonic_ns;
    uint64_t realtime_ns;
    uint64_t uncertainty_ns;
    _Atomic uint64_t used; /* events: how many; definitions: how many bytes. Everything below it is complete */
    char thread_name[16];
    uint64_t back; /* where the blobs begin, while no thread owns the chunk */
};

struct event {
    uint64_t monotonic_ns;
    uint64_t value;   /* payload; for start and end the range's id, their payload then lies in the blob */
    uint32_t message; /* registered string; 0: in the blob, or none */
    uint32_t category;
    uint16_t domain; /* 0: the default domain */
    uint16_t blob;   /* position in the chunk in 8-byte units; 0: no blob */
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
    uint32_t bytes;        /* as the program gave it; UINT32_MAX: that or more */
    uint32_t stored_bytes; /* that follow; fewer: too large to be kept */
};

_Static_assert(sizeof(struct file_header) == 480, "the reader relies on this layout");
_Static_assert(sizeof(struct chunk_header) == 80, "the reader relies on this layout");
_Static_assert(sizeof(struct event) == 32, "the reader relies on this layout");
_Static_assert(sizeof(struct definition) == 16, "the reader relies on this layout");
_Static_assert(sizeof(struct blob_payload) == 16, "the reader relies on this layout");
_Static_assert(sizeof(long) == 8 && sizeof(wchar_t) == 4, "written for 64-bit Linux");

#endif
