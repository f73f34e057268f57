/* One function per NVTX call: it turns arguments into a request or a definition, and bounds what the program gives. */
#define _GNU_SOURCE
#include "capture.h"

#include <string.h>

static _Atomic uint64_t next_string = 1;
static _Atomic uint64_t next_domain = 1;
static _Atomic uint64_t next_range = 1;
static _Atomic uint64_t next_schema = NVTX_PAYLOAD_SCHEMA_ID_DYNAMIC_START;

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
    if (schema == NULL || (schema->fieldMask & needed) != needed || schema->entries == NULL ||
        schema->numEntries > SCHEMA_ENTRIES_MAX)
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
    if (enumeration == NULL || (enumeration->fieldMask & needed) != needed || enumeration->entries == NULL ||
        enumeration->numEntries > SCHEMA_ENTRIES_MAX)
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

/* ---- the table ------------------------------------------------------------------------------------------------------- */

#define CALLBACK(id, function) {id, (NvtxFunctionPointer)(function)}

const struct callback core_callbacks[] = {
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

const struct callback domain_callbacks[] = {
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

const struct callback payload_callbacks[] = {
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

const size_t core_callback_count = LENGTH(core_callbacks);
const size_t domain_callback_count = LENGTH(domain_callbacks);
const size_t payload_callback_count = LENGTH(payload_callbacks);
