/*
 * Calls the capture library's callbacks with arguments made of arbitrary bytes: a fuzz target, and, without libFuzzer, a program that
 * makes the bytes itself. Usage: nvtx_fuzz LIBRARY ROUNDS
 *
 * Every pointer is valid for the memory that its call promises (strings end, `entries` has as many as it says, up to what is here);
 * all numbers, types, sizes and flags are arbitrary.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExtPayload.h>

enum { SLOTS = 64 };
typedef void (*anything)(void);
static anything core[SLOTS], core2[SLOTS];
static intptr_t payload[SLOTS];
static NvtxFunctionPointer *core_table[SLOTS + 1], *core2_table[SLOTS + 1];

static int get_table(NvtxCallbackModule module, NvtxFunctionTable *table, unsigned int *size)
{
    if (module != NVTX_CB_MODULE_CORE && module != NVTX_CB_MODULE_CORE2)
        return 0;
    *table = module == NVTX_CB_MODULE_CORE ? core_table : core2_table;
    *size = SLOTS;
    return 1;
}

static const NvtxExportTableCallbacks callbacks = {sizeof(NvtxExportTableCallbacks), get_table};

static const void *export_table(uint32_t id)
{
    return id == NVTX_ETID_CALLBACKS ? &callbacks : NULL;
}

static const uint8_t *left;
static size_t left_bytes;

static uint64_t number(size_t bytes)
{
    uint64_t found = 0;
    bytes = bytes < left_bytes ? bytes : left_bytes;
    memcpy(&found, left, bytes);
    left += bytes, left_bytes -= bytes;
    return found;
}

/* Small numbers, numbers at the edges, and any number. */
static uint64_t size(void)
{
    static const uint64_t edges[] = {0, 1, 7, 8, 255, 256, 32767, 32768, 65535, 65536, UINT32_MAX, UINT64_MAX / 2, UINT64_MAX - 7,
                                     UINT64_MAX - 1, UINT64_MAX};
    const uint64_t choice = number(1);
    if (choice < sizeof edges / sizeof *edges)
        return edges[choice];
    return choice & 1 ? number(1) : number(8);
}

static char texts[1 << 17];
static wchar_t wides[1 << 14];

/* The last of the array ends it, so every start in it is a string. */
static const char *text(void)
{
    return number(1) % 8 ? texts + number(3) % sizeof texts : NULL;
}

static const wchar_t *wide(void)
{
    return number(1) % 8 ? wides + number(2) % (sizeof wides / sizeof *wides) : NULL;
}

static nvtxDomainHandle_t domain(void)
{
    return (nvtxDomainHandle_t)(uintptr_t)size();
}

static const nvtxPayloadData_t *payloads(size_t *count)
{
    static nvtxPayloadData_t found[300];
    *count = number(1) % 16 == 0 ? 300 : number(1) % 4;
    for (size_t i = 0; i < *count; i++) {
        const uint64_t bytes = size();
        /* What is not there cannot be read: memory of the size that is given, or a size that no memory has. */
        const int there = bytes <= sizeof texts;
        found[i] = (nvtxPayloadData_t){number(1) % 2 ? NVTX_PAYLOAD_ENTRY_TYPE_CSTRING : size(), there || bytes > 1ull << 40 ? bytes : 0,
                                       number(1) % 8 ? texts : NULL};
    }
    return number(1) % 16 ? found : NULL;
}

static const nvtxEventAttributes_t *attributes(void)
{
    static nvtxEventAttributes_t found;
    memset(&found, 0, sizeof found);
    size_t count;
    found.version = (uint16_t)number(2);
    found.size = number(1) % 8 ? sizeof found : (uint16_t)number(2);
    found.category = (uint32_t)size();
    found.payloadType = number(1) % 2 ? (int32_t)(number(1) % 9) : (int32_t)size();
    found.payload.ullValue = size();
    found.reserved0 = 0;
    if (found.payloadType == (int32_t)NVTX_PAYLOAD_TYPE_EXT) {
        found.payload.ullValue = (uint64_t)(uintptr_t)payloads(&count);
        found.reserved0 = number(1) % 8 ? (int32_t)count : -(int32_t)count;
    }
    found.messageType = (int32_t)(number(1) % 5);
    if (found.messageType == NVTX_MESSAGE_TYPE_ASCII)
        found.message.ascii = text();
    else if (found.messageType == NVTX_MESSAGE_TYPE_UNICODE)
        found.message.unicode = wide();
    else
        found.message.registered = (nvtxStringHandle_t)(uintptr_t)size();
    return number(1) % 16 ? &found : NULL;
}

static void schema(void)
{
    static nvtxPayloadSchemaEntry_t entries[64];
    static nvtxPayloadEnum_t values[64];
    const size_t count = number(1) % 65;
    for (size_t i = 0; i < count; i++) {
        entries[i] = (nvtxPayloadSchemaEntry_t){size(), size(), text(), NULL, size(), size(), NULL, NULL};
        values[i] = (nvtxPayloadEnum_t){text(), size(), (int8_t)number(1)};
    }
    nvtxPayloadSchemaAttr_t of = {0};
    of.fieldMask = size(), of.name = text(), of.type = size(), of.flags = size(), of.entries = entries;
    of.numEntries = number(1) % 8 ? count : UINT64_MAX - number(1), of.payloadStaticSize = size(), of.packAlign = size();
    of.schemaId = size();
    ((uint64_t (*)(nvtxDomainHandle_t, const nvtxPayloadSchemaAttr_t *))payload[NVTX3EXT_CBID_nvtxPayloadSchemaRegister])(
        domain(), number(1) % 16 ? &of : NULL);
    nvtxPayloadEnumAttr_t named = {0};
    named.fieldMask = size(), named.name = text(), named.entries = values, named.sizeOfEnum = size(), named.schemaId = size();
    named.numEntries = number(1) % 8 ? count : UINT64_MAX - number(1);
    ((uint64_t (*)(nvtxDomainHandle_t, const nvtxPayloadEnumAttr_t *))payload[NVTX3EXT_CBID_nvtxPayloadEnumRegister])(
        domain(), number(1) % 16 ? &named : NULL);
}

#define CALL(table, id, type, ...) ((type)(table)[id])(__VA_ARGS__)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    size_t count;
    left = data, left_bytes = bytes;
    while (left_bytes > 0) {
        switch (number(1) % 20) {
        case 0: CALL(core, NVTX_CBID_CORE_MarkEx, void (*)(const nvtxEventAttributes_t *), attributes()); break;
        case 1: CALL(core, NVTX_CBID_CORE_MarkA, void (*)(const char *), text()); break;
        case 2: CALL(core, NVTX_CBID_CORE_MarkW, void (*)(const wchar_t *), wide()); break;
        case 3: CALL(core, NVTX_CBID_CORE_RangePushEx, int (*)(const nvtxEventAttributes_t *), attributes()); break;
        case 4: CALL(core, NVTX_CBID_CORE_RangePushA, int (*)(const char *), text()); break;
        case 5: CALL(core, NVTX_CBID_CORE_RangePop, int (*)(void)); break;
        case 6: CALL(core, NVTX_CBID_CORE_RangeStartEx, uint64_t (*)(const nvtxEventAttributes_t *), attributes()); break;
        case 7: CALL(core, NVTX_CBID_CORE_RangeEnd, void (*)(uint64_t), size()); break;
        case 8: CALL(core, NVTX_CBID_CORE_NameCategoryA, void (*)(uint32_t, const char *), (uint32_t)size(), text()); break;
        case 9: CALL(core, NVTX_CBID_CORE_NameOsThreadW, void (*)(uint32_t, const wchar_t *), (uint32_t)size(), wide()); break;
        case 10: CALL(core2, NVTX_CBID_CORE2_DomainMarkEx, void (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), domain(), attributes()); break;
        case 11: CALL(core2, NVTX_CBID_CORE2_DomainRangePushEx, int (*)(nvtxDomainHandle_t, const nvtxEventAttributes_t *), domain(), attributes()); break;
        case 12: CALL(core2, NVTX_CBID_CORE2_DomainRangePop, int (*)(nvtxDomainHandle_t), domain()); break;
        case 13: CALL(core2, NVTX_CBID_CORE2_DomainRegisterStringA, nvtxStringHandle_t (*)(nvtxDomainHandle_t, const char *), domain(), text()); break;
        case 14: CALL(core2, NVTX_CBID_CORE2_DomainCreateW, nvtxDomainHandle_t (*)(const wchar_t *), wide()); break;
        case 15: schema(); break;
        case 16: CALL(payload, NVTX3EXT_CBID_nvtxMarkPayload, void (*)(nvtxDomainHandle_t, const nvtxPayloadData_t *, size_t), domain(), payloads(&count), count); break;
        case 17: CALL(payload, NVTX3EXT_CBID_nvtxRangePushPayload, int (*)(nvtxDomainHandle_t, const nvtxPayloadData_t *, size_t), domain(), payloads(&count), count); break;
        case 18: CALL(payload, NVTX3EXT_CBID_nvtxRangePopPayload, int (*)(nvtxDomainHandle_t, const nvtxPayloadData_t *, size_t), domain(), payloads(&count), count); break;
        case 19: CALL(payload, NVTX3EXT_CBID_nvtxRangeEndPayload, void (*)(nvtxDomainHandle_t, uint64_t, const nvtxPayloadData_t *, size_t), domain(), size(), payloads(&count), count); break;
        }
    }
    return 0;
}

static int load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 0;
    }
    for (int i = 0; i < SLOTS; i++)
        core_table[i] = (NvtxFunctionPointer *)&core[i], core2_table[i] = (NvtxFunctionPointer *)&core2[i];
    for (size_t i = 0; i + 1 < sizeof texts; i++)
        texts[i] = (char)(1 + i % 255);
    for (size_t i = 0; i + 1 < sizeof wides / sizeof *wides; i++)
        wides[i] = (wchar_t)(i * 2654435761u | 1);
    nvtxExtModuleSegment_t segment = {.segmentId = 0, .slotCount = SLOTS, .functionSlots = payload};
    nvtxExtModuleInfo_t module = {.moduleId = NVTX_EXT_PAYLOAD_MODULEID, .segmentsCount = 1, .segments = &segment};
    int (*start)(NvtxGetExportTableFunc_t) = (int (*)(NvtxGetExportTableFunc_t))dlsym(library, "InitializeInjectionNvtx2");
    int (*extend)(nvtxExtModuleInfo_t *) = (int (*)(nvtxExtModuleInfo_t *))dlsym(library, "InitializeInjectionNvtxExtension");
    return start != NULL && extend != NULL && start(export_table) && extend(&module);
}

#ifdef LIBFUZZER
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count, (void)arguments;
    return load(getenv("MTPPROF_NVTX_LIBRARY")) ? 0 : 1;
}
#else
int main(int argc, char **argv)
{
    if (argc < 3 || !load(argv[1]))
        return 2;
    uint64_t state = 88172645463325252u;
    static uint8_t bytes[4096];
    for (long round = 0; round < atol(argv[2]); round++) {
        for (size_t i = 0; i < sizeof bytes; i += 8) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            memcpy(bytes + i, &state, 8);
        }
        LLVMFuzzerTestOneInput(bytes, sizeof bytes);
    }
    return 0;
}
#endif
