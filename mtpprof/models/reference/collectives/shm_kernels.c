/* All-reduce, alone and with the residual add and RMSNorm that follow, over slots in shared memory: one pass each.
 *
 * Every rank copies its tensor into its own slot, stores the number of the call into its flag, waits for the flags of the others and
 * then reads every other slot once. Slots and flags are those of `shm.py`, which says why two sets of slots suffice. Ranks are added in
 * their order, so that all of them get the same bits. Sums are rounded where separate operations would round them: after the
 * all-reduce and after the residual add. The norm is computed in fp32 (fp64 for fp64).
 *
 * Portable C11: plain loops over a block, and LANES partial sums, are what compilers vectorize; nothing depends on a processor.
 */

#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))
#define MAX_RANKS 64
#define LANES 16
#define BLOCK 512 /* elements whose sums are held at one time; they stay in the first cache */
#define SPINS_PER_CLOCK_READ 256

struct call {
    unsigned char *flags;     /* of rank r at r * flag_bytes */
    unsigned char *slots;     /* of this call's set; of rank r at r * slot_bytes */
    int64_t flag_bytes;
    int64_t slot_bytes;
    int64_t rank;
    int64_t ranks;
    int64_t sequence;         /* number of this call */
    int64_t dtype;            /* enum below */
    int64_t rows;
    int64_t width;            /* elements of a row */
    const void *input;        /* [rows, width] */
    const void *residual;     /* [rows, width] */
    const void *weight;       /* [width] */
    void *output;             /* [rows, width] */
    void *scratch;            /* room for a row in the wide type */
    double eps;
};

enum { BF16 = 0, FP16 = 1, FP32 = 2, FP64 = 3 };
static const int64_t ITEM_BYTES[] = {2, 2, 4, 8};

/* Conversions. Rounding is to nearest, ties to even. */

static inline float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t to_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float load_bf16(uint16_t half) { return from_bits((uint32_t)half << 16); }

static inline uint16_t store_bf16(float value) {
    uint32_t bits = to_bits(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

static inline float load_fp16(uint16_t half) {
    uint32_t magnitude = half & 0x7fffu, sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t finite = to_bits(from_bits(magnitude << 13) * 0x1p112f);
    uint32_t special = (magnitude << 13) | 0x7f800000u;
    return from_bits((magnitude >= 0x7c00u ? special : finite) | sign);
}

static inline uint16_t store_fp16(float value) {
    uint32_t bits = to_bits(value), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    /* Adding one half leaves the bits of a number below the smallest normal one at the low end, rounded. */
    uint32_t small = to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
    uint32_t found = magnitude < 0x38800000u ? small : normal;
    found = magnitude >= 0x47800000u ? 0x7c00u : found;
    found = magnitude > 0x7f800000u ? 0x7e00u : found;
    return (uint16_t)(found | sign);
}

static inline float load_fp32(float value) { return value; }
static inline float store_fp32(float value) { return value; }
static inline double load_fp64(double value) { return value; }
static inline double store_fp64(double value) { return value; }

/* Arrival */

static atomic_llong *flag_of(const struct call *call, int64_t rank) {
    return (atomic_llong *)(call->flags + rank * call->flag_bytes);
}

static void publish(const struct call *call) {
    size_t bytes = (size_t)(call->rows * call->width * ITEM_BYTES[call->dtype]);
    memcpy(call->slots + call->rank * call->slot_bytes, call->input, bytes);
    atomic_store_explicit(flag_of(call, call->rank), call->sequence, memory_order_release);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The first rank that has not arrived after `patience_ns`; -1: all have. */
static int64_t wait_for_all(const struct call *call, int64_t patience_ns) {
    int64_t deadline_ns = 0;
    for (int64_t peer = 0; peer < call->ranks; peer++) {
        for (int64_t spins = 1;
             atomic_load_explicit(flag_of(call, peer), memory_order_acquire) < call->sequence; spins++) {
            sched_yield();
            if (spins % SPINS_PER_CLOCK_READ)
                continue;
            if (!deadline_ns)
                deadline_ns = now_ns() + patience_ns;
            else if (now_ns() > deadline_ns)
                return peer;
        }
    }
    return -1;
}

/* Arithmetic, once for each dtype */

#define DEFINE(NAME, ITEM, WIDE, SQRT) \
    \
    static void parts_##NAME(const struct call *call, const ITEM **parts) { \
        for (int64_t rank = 0; rank < call->ranks; rank++) \
            parts[rank] = rank == call->rank ? (const ITEM *)call->input \
                                             : (const ITEM *)(call->slots + rank * call->slot_bytes); \
    } \
    \
    /* Sums over the ranks of `count` elements from `at` on. */ \
    static inline void sum_##NAME(const ITEM *const *parts, int64_t ranks, int64_t at, int64_t count, \
                                  WIDE *restrict sums) { \
        const ITEM *first = parts[0] + at; \
        for (int64_t index = 0; index < count; index++) \
            sums[index] = load_##NAME(first[index]); \
        for (int64_t rank = 1; rank < ranks; rank++) { \
            const ITEM *part = parts[rank] + at; \
            for (int64_t index = 0; index < count; index++) \
                sums[index] += load_##NAME(part[index]); \
        } \
    } \
    \
    static void reduce_##NAME(const struct call *call) { \
        const ITEM *parts[MAX_RANKS]; \
        int64_t size = call->rows * call->width; \
        WIDE sums[BLOCK]; \
        parts_##NAME(call, parts); \
        for (int64_t at = 0; at < size; at += BLOCK) { \
            int64_t count = size - at < BLOCK ? size - at : BLOCK; \
            ITEM *restrict output = (ITEM *)call->output + at; \
            sum_##NAME(parts, call->ranks, at, count, sums); \
            for (int64_t index = 0; index < count; index++) \
                output[index] = store_##NAME(sums[index]); \
        } \
    } \
    \
    /* `row = residual + sums`, each rounded; adds the squares of the row to LANES partial sums. */ \
    static inline void add_##NAME(const WIDE *restrict sums, const ITEM *restrict residual, int64_t count, \
                                  WIDE *restrict row, WIDE *restrict squares) { \
        int64_t index = 0; \
        for (; index < count; index++) { \
            WIDE sum = load_##NAME(store_##NAME(sums[index])); \
            row[index] = load_##NAME(store_##NAME(load_##NAME(residual[index]) + sum)); \
        } \
        for (index = 0; index + LANES <= count; index += LANES) \
            for (int lane = 0; lane < LANES; lane++) \
                squares[lane] += row[index + lane] * row[index + lane]; \
        for (int lane = 0; index + lane < count; lane++) \
            squares[lane] += row[index + lane] * row[index + lane]; \
    } \
    \
    static void reduce_and_norm_##NAME(const struct call *call) { \
        const ITEM *parts[MAX_RANKS], *residual = call->residual, *weight = call->weight; \
        WIDE *row = call->scratch, sums[BLOCK]; \
        int64_t width = call->width; \
        parts_##NAME(call, parts); \
        for (int64_t start = 0; start < call->rows * width; start += width) { \
            ITEM *restrict output = (ITEM *)call->output + start; \
            WIDE squares[LANES] = {0}, total = 0; \
            for (int64_t column = 0; column < width; column += BLOCK) { \
                int64_t count = width - column < BLOCK ? width - column : BLOCK; \
                sum_##NAME(parts, call->ranks, start + column, count, sums); \
                add_##NAME(sums, residual + start + column, count, row + column, squares); \
            } \
            for (int lane = 0; lane < LANES; lane++) \
                total += squares[lane]; \
            WIDE scale = 1 / SQRT(total / (WIDE)width + (WIDE)call->eps); \
            for (int64_t column = 0; column < width; column++) \
                output[column] = store_##NAME(row[column] * scale * load_##NAME(weight[column])); \
        } \
    }

DEFINE(bf16, uint16_t, float, sqrtf)
DEFINE(fp16, uint16_t, float, sqrtf)
DEFINE(fp32, float, float, sqrtf)
DEFINE(fp64, double, double, sqrt)

typedef void (*work_fn)(const struct call *);
static const work_fn REDUCE[] = {reduce_bf16, reduce_fp16, reduce_fp32, reduce_fp64};
static const work_fn REDUCE_AND_NORM[] = {reduce_and_norm_bf16, reduce_and_norm_fp16, reduce_and_norm_fp32,
                                       reduce_and_norm_fp64};

/* A call that is not complete after `patience_ns` returns the rank it waits for and is to be made again with `again`, which does not
 * publish a second time: so the caller can answer signals while it waits. -1: complete. */
static int64_t carry_out(const struct call *call, int64_t patience_ns, int64_t again, work_fn work) {
    if (!again)
        publish(call);
    int64_t missing = wait_for_all(call, patience_ns);
    if (missing < 0)
        work(call);
    return missing;
}

/* `output = sum of input over the ranks` */
EXPORT int64_t mtpprof_all_reduce(const struct call *call, int64_t patience_ns, int64_t again) {
    return carry_out(call, patience_ns, again, REDUCE[call->dtype]);
}

/* `output = rmsnorm(residual + sum of input over the ranks) * weight` */
EXPORT int64_t mtpprof_all_reduce_residual_rmsnorm(const struct call *call, int64_t patience_ns, int64_t again) {
    return carry_out(call, patience_ns, again, REDUCE_AND_NORM[call->dtype]);
}

EXPORT int64_t mtpprof_max_ranks(void) { return MAX_RANKS; }
