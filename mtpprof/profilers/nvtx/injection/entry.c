/*
 * NVTX loads the library named by NVTX_INJECTION64_PATH and calls InitializeInjectionNvtx2 (and, for the payload extension,
 * InitializeInjectionNvtxExtension) once for every binary of the process that has NVTX compiled in.
 */
#define _GNU_SOURCE
#include "capture.h"

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int ready;

static void set_up(void)
{
    ready = set_up_process();
    if (ready)
        set_up_threads();
}

static int attach(const NvtxExportTableCallbacks *table, NvtxCallbackModule module, const struct callback *callbacks, size_t count)
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

/* Opens the file already here: its existence tells mtpprof that the library was loaded. A want of descriptors or space may pass, so
 * then the callbacks are attached all the same. */
static int open_now(void)
{
    struct disturbance saved;
    enum loss why = LOST_TO_FILE;
    begin_undisturbed(&saved);
    const int opened = open_process_file(&why);
    end_undisturbed(&saved);
    return opened || why != LOST_TO_FILE;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table)
{
    pthread_once(&once, set_up);
    const NvtxExportTableCallbacks *table = get_export_table(NVTX_ETID_CALLBACKS);
    return table != NULL && ready && open_now() &&
           attach(table, NVTX_CB_MODULE_CORE, core_callbacks, core_callback_count) &&
           attach(table, NVTX_CB_MODULE_CORE2, domain_callbacks, domain_callback_count);
}

__attribute__((visibility("default"))) int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module)
{
    pthread_once(&once, set_up);
    if (!ready || module->moduleId != NVTX_EXT_PAYLOAD_MODULEID || module->segmentsCount == 0)
        return 0;
    nvtxExtModuleSegment_t *slots = &module->segments[0];
    for (size_t i = 0; i < payload_callback_count; i++)
        if (payload_callbacks[i].id < slots->slotCount)
            slots->functionSlots[payload_callbacks[i].id] = (intptr_t)payload_callbacks[i].function;
    return 1;
}
