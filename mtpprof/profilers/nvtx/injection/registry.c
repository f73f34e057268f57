/* Definitions: names, registered strings, payload schemas. Each thread that defines something has a chunk of its own for it. */
#define _GNU_SOURCE
#include "capture.h"

#include <string.h>

/* Writes the variable part of a definition; with `at` NULL it only counts bytes. A text may grow between the two, so there is a limit. */
struct writer {
    char *at;
    size_t bytes;
    size_t limit;
};

static void put(struct writer *to, const void *what, size_t bytes, size_t padded)
{
    if (to->at != NULL) {
        if (to->bytes + padded > to->limit) {
            to->bytes = to->limit;
            return;
        }
        if (bytes > 0)
            memcpy(to->at + to->bytes, what, bytes);
    }
    to->bytes += padded;
}

static void put_number(struct writer *to, uint64_t value)
{
    put(to, &value, sizeof value, sizeof value);
}

static void put_text(struct writer *to, const char *text)
{
    const size_t length = text == NULL ? 0 : strnlen(text, TEXT_BYTES_MAX);
    put_number(to, length);
    put(to, text, length, round_up(length, 8));
}

void describe_text(struct writer *to, const void *text)
{
    put_text(to, text);
}

void describe_schema(struct writer *to, const void *what)
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

void describe_enum(struct writer *to, const void *what)
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

static void store(struct chunk_header *chunk, const struct definition *head, describe_function *describe, const void *what)
{
    const uint64_t used = chunk->used;
    char *record = (char *)(chunk + 1) + used;
    memcpy(record, head, sizeof *head);
    describe(&(struct writer){record, sizeof *head, head->bytes}, what);
    atomic_store_explicit(&chunk->used, used + head->bytes, memory_order_release);
}

void define(uint16_t kind, uint16_t domain, uint64_t id, describe_function *describe, const void *what)
{
    struct writer counter = {NULL, sizeof(struct definition), 0};
    describe(&counter, what);
    if (counter.bytes > DEFINITION_BYTES_MAX)
        return; /* the reader shows its number */
    const struct definition head = {(uint32_t)counter.bytes, kind, domain, id};
    struct disturbance saved;
    enum loss why;
    begin_undisturbed(&saved);
    if (open_process_file(&why)) {
        /* The chunk is nobody's while it is parked, and only ours while it is not. */
        struct chunk_header *chunk = take_parked_chunk(CHUNK_DEFINITIONS);
        if (chunk != NULL && sizeof *chunk + chunk->used + head.bytes > chunk->chunk_bytes) {
            unmap_chunk(chunk);
            chunk = NULL;
        }
        if (chunk == NULL)
            chunk = new_chunk(CHUNK_DEFINITIONS, 4 * CHUNK_BYTES_MIN > head.bytes + sizeof *chunk ? 4 * CHUNK_BYTES_MIN
                                                                                                : head.bytes + sizeof *chunk, &why);
        if (chunk == NULL) {
            count_lost(why, 1);
        } else {
            store(chunk, &head, describe, what);
            park_chunk(chunk);
        }
    }
    end_undisturbed(&saved);
}
