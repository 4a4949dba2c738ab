// A Vulkan layer for tests: it gives a software driver the limits and the identity of devices that are not there.
//
//   AG_LIMITS_ONLY=<text>          only devices whose own name contains this; else every device
//   AG_LIMITS_SHARED=<bytes>       maxComputeSharedMemorySize
//   AG_LIMITS_INVOCATIONS=<n>      maxComputeWorkGroupInvocations, and maxComputeWorkGroupSize along x and y
//   AG_LIMITS_RANGE=<bytes>        maxStorageBufferRange
//   AG_LIMITS_ADDRESSES=0          no bufferDeviceAddress
//   AG_LIMITS_BINDINGS=<n>         maxPerStageDescriptorStorageBuffers
//   AG_LIMITS_ALLOC=<bytes>        maxMemoryAllocationSize and maxBufferSize; a larger allocation fails
//   AG_LIMITS_ALLOC_UNSAID=<bytes> a larger allocation fails, and no limit tells
//   AG_LIMITS_HEAP=<bytes>         the first memory heap has so many; the driver gives what the machine has
//   AG_LIMITS_MEMORY=<bytes:flags:...,...>  heaps of so many bytes, each with types of memory with these
//                                  VkMemoryPropertyFlags; all types are the driver's first, and what a heap has not
//                                  is refused
//   AG_LIMITS_FULL=<n>             there is no memory of type n left
//   AG_LIMITS_TYPES=<file>         the type of every allocation, a digit
//   AG_LIMITS_BUDGET=<bytes>       VK_EXT_memory_budget is there, and this the budget of the first heap; of others it
//                                  is what they have
//   AG_LIMITS_ALLOCATIONS=<n>      a device may have so many allocations in all, and then too many objects
//   AG_LIMITS_SUBGROUP=<n>         maxSubgroupSize, the largest that a pipeline may require
//   AG_LIMITS_NVIDIA=<n>           VK_NV_shader_sm_builtins is there: so many multiprocessors
//   AG_LIMITS_AMD=<n:n:n>          VK_AMD_shader_core_properties is there: engines, arrays in each, units in each
//   AG_LIMITS_AMD_ACTIVE=<n>       VK_AMD_shader_core_properties2 is there: so many units that are switched on
//   AG_LIMITS_ARM=<n:mask>         VK_ARM_shader_core_builtins is there: so many cores, and which
//   AG_LIMITS_TYPE=<n>             device type: 1 integrated, 2 discrete, 3 virtual, 4 CPU
//   AG_LIMITS_NAME, AG_LIMITS_UUID=<text>; AG_LIMITS_DRIVER=<n>, a VkDriverId; AG_LIMITS_VENDOR=<n>
//   AG_LIMITS_QUEUES=<flags:bits,...>  queue families with these VkQueueFlags and bits of timestamps, a queue in each; all
//                                  are the driver's first family
//   AG_LIMITS_FAMILIES=<file>      for every queue that is got and every command pool that is made: its family, a digit
//   AG_LIMITS_SIZES=<n>            sizes of tiles are lost: specialization constants n to 6 keep their defaults
//   AG_LIMITS_WITHOUT=<name>       an extension of devices that is not there
//   AG_LIMITS_PIPELINES=<file>     a byte is appended for every compute pipeline that is made
//   AG_LIMITS_STAGES=<file>        likewise a line: the subgroup size that it requires, 0 if none, and the stage's flags
//   AG_LIMITS_DEVICES=<file>       a byte is appended for every VkDevice that is made
//   AG_LIMITS_FEATURES=<file>      likewise a line: for every feature that is enabled, the VkStructureType of its
//                                  struct and its place in that; and the extensions
//   AG_LIMITS_EVERY=1              every feature that is asked for is there, and the driver is told of none: it cannot
//                                  run what uses them
//
// Build:  cc -shared -fPIC -o libaglimits.so limits.c      (Vulkan headers only)
// Use:    VK_LAYER_PATH=<folder of the .json and .so> VK_INSTANCE_LAYERS=VK_LAYER_AG_limits program
//
// Not thread-safe: the caller must not create instances or devices in two threads at once.

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

enum { MOST = 256 };

// What follows in the chain.  An instance and its physical devices, and a device and its queues, begin with the same
// pointer, the loader's dispatch table, which serves as the key.
typedef struct {
    void *key;
    PFN_vkGetInstanceProcAddr getProc;
    PFN_vkGetPhysicalDeviceProperties properties;
    PFN_vkGetPhysicalDeviceProperties2 properties2;
    PFN_vkGetPhysicalDeviceMemoryProperties memory;
    PFN_vkGetPhysicalDeviceMemoryProperties2 memory2;
    PFN_vkGetPhysicalDeviceFeatures2 features2;
    PFN_vkEnumerateDeviceExtensionProperties extensions;
    PFN_vkGetPhysicalDeviceQueueFamilyProperties families;
    VkInstance handle;
} Instance;

typedef struct {
    void *key;
    PFN_vkGetDeviceProcAddr getProc;
    PFN_vkAllocateMemory allocate;
    PFN_vkGetBufferMemoryRequirements requirements;
    PFN_vkFreeMemory free;
    PFN_vkCreateComputePipelines pipelines;
    PFN_vkGetDeviceQueue queue;
    PFN_vkCreateCommandPool commandPool;
    int limited;
    long allocations;
} Device;

static Instance instances[MOST];
static Device devices[MOST];
static int instanceCount, deviceCount;
static struct { VkDeviceMemory memory; VkDeviceSize size; uint32_t heap; } kept[16 * MOST]; // what all devices have
static PFN_vkGetInstanceProcAddr latest;

static Instance *instanceOf(void *handle)
{
    for (int i = instanceCount - 1; i >= 0; i--) // from the back: a key may come again
        if (instances[i].key == *(void **)handle)
            return &instances[i];
    abort();
}

static Device *deviceOf(void *handle)
{
    for (int i = deviceCount - 1; i >= 0; i--)
        if (devices[i].key == *(void **)handle)
            return &devices[i];
    abort();
}

static int number(const char *name, unsigned long long *found)
{
    const char *text = getenv(name);
    if (text)
        *found = strtoull(text, NULL, 0);
    return text != NULL;
}

static void note(const char *name, uint32_t times, int letter)
{
    const char *path = getenv(name);
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    while (times--)
        fputc(letter, file);
    fclose(file);
}

static void count(const char *name, uint32_t times)
{
    note(name, times, 'x');
}

// ---- limits and identity -------------------------------------------------------------------------

// The extensions that are there if a variable is set.
static const struct { const char *variable, *name; } added[] = {
    {"AG_LIMITS_BUDGET", "VK_EXT_memory_budget"},
    {"AG_LIMITS_NVIDIA", "VK_NV_shader_sm_builtins"},
    {"AG_LIMITS_AMD", "VK_AMD_shader_core_properties"},
    {"AG_LIMITS_AMD_ACTIVE", "VK_AMD_shader_core_properties2"},
    {"AG_LIMITS_ARM", "VK_ARM_shader_core_builtins"},
};
enum { ADDED = sizeof added / sizeof *added };

static int concerns(const char *deviceName)
{
    const char *only = getenv("AG_LIMITS_ONLY");
    return !only || strstr(deviceName, only);
}

static void change(VkPhysicalDeviceProperties *p)
{
    unsigned long long n;
    VkPhysicalDeviceLimits *limits = &p->limits;
    if (number("AG_LIMITS_SHARED", &n))
        limits->maxComputeSharedMemorySize = n;
    if (number("AG_LIMITS_INVOCATIONS", &n))
        limits->maxComputeWorkGroupInvocations = limits->maxComputeWorkGroupSize[0] =
            limits->maxComputeWorkGroupSize[1] = n;
    if (number("AG_LIMITS_RANGE", &n))
        limits->maxStorageBufferRange = n;
    if (number("AG_LIMITS_BINDINGS", &n))
        limits->maxPerStageDescriptorStorageBuffers = n;
    if (number("AG_LIMITS_TYPE", &n))
        p->deviceType = n;
    if (number("AG_LIMITS_VENDOR", &n))
        p->vendorID = n;
    if (getenv("AG_LIMITS_NAME"))
        snprintf(p->deviceName, sizeof p->deviceName, "%s", getenv("AG_LIMITS_NAME"));
}

static void VKAPI_CALL GetPhysicalDeviceProperties(VkPhysicalDevice device, VkPhysicalDeviceProperties *p)
{
    instanceOf(device)->properties(device, p);
    if (concerns(p->deviceName))
        change(p);
}

static void VKAPI_CALL GetPhysicalDeviceProperties2(VkPhysicalDevice device, VkPhysicalDeviceProperties2 *all)
{
    unsigned long long n;
    instanceOf(device)->properties2(device, all);
    if (!concerns(all->properties.deviceName))
        return;
    change(&all->properties);
    for (VkBaseOutStructure *more = all->pNext; more; more = more->pNext)
        switch (more->sType) {
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES:
            if (number("AG_LIMITS_ALLOC", &n))
                ((VkPhysicalDeviceMaintenance3Properties *)more)->maxMemoryAllocationSize = n;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_4_PROPERTIES:
            if (number("AG_LIMITS_ALLOC", &n))
                ((VkPhysicalDeviceMaintenance4Properties *)more)->maxBufferSize = n;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_PROPERTIES:
            if (number("AG_LIMITS_SUBGROUP", &n))
                ((VkPhysicalDeviceSubgroupSizeControlProperties *)more)->maxSubgroupSize = n;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES:
            if (getenv("AG_LIMITS_UUID"))
                strncpy((char *)((VkPhysicalDeviceIDProperties *)more)->deviceUUID, getenv("AG_LIMITS_UUID"),
                        VK_UUID_SIZE);
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_DRIVER_PROPERTIES:
            if (number("AG_LIMITS_DRIVER", &n))
                ((VkPhysicalDeviceDriverProperties *)more)->driverID = n;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SM_BUILTINS_PROPERTIES_NV:
            if (number("AG_LIMITS_NVIDIA", &n))
                ((VkPhysicalDeviceShaderSMBuiltinsPropertiesNV *)more)->shaderSMCount = n;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_AMD: {
            VkPhysicalDeviceShaderCorePropertiesAMD *chip = (VkPhysicalDeviceShaderCorePropertiesAMD *)more;
            if (getenv("AG_LIMITS_AMD"))
                sscanf(getenv("AG_LIMITS_AMD"), "%u:%u:%u", &chip->shaderEngineCount,
                       &chip->shaderArraysPerEngineCount, &chip->computeUnitsPerShaderArray);
            break;
        }
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_PROPERTIES_2_AMD:
            if (number("AG_LIMITS_AMD_ACTIVE", &n))
                ((VkPhysicalDeviceShaderCoreProperties2AMD *)more)->activeComputeUnitCount = n;
            break;
        case VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_CORE_BUILTINS_PROPERTIES_ARM: {
            VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM *cores =
                (VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM *)more;
            if (getenv("AG_LIMITS_ARM"))
                sscanf(getenv("AG_LIMITS_ARM"), "%u:%" SCNx64, &cores->shaderCoreCount, &cores->shaderCoreMask);
            break;
        }
        default:
            break;
        }
}

// ---- features ------------------------------------------------------------------------------------

static const struct { VkStructureType type; size_t count; } featureStructs[] = {
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2, sizeof(VkPhysicalDeviceFeatures) / 4},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES, 4},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES, 3},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES, 2},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SUBGROUP_EXTENDED_TYPES_FEATURES, 1},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES, 3},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES, 3},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES, 1},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES, 2},
    {VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT, 12},
    {1000506000, 2}, // cooperative matrices
    {1000141000, 3}, // bfloat16
};

// How many VkBool32 a struct of features has; 0 if it is none of these.
static size_t features_in(VkStructureType type)
{
    for (size_t i = 0; i < sizeof featureStructs / sizeof *featureStructs; i++)
        if (featureStructs[i].type == type)
            return featureStructs[i].count;
    return 0;
}

static void note_features(const VkDeviceCreateInfo *info)
{
    const char *path = getenv("AG_LIMITS_FEATURES");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    for (const VkBaseInStructure *more = info->pNext; more; more = more->pNext) {
        const VkBool32 *on = (const VkBool32 *)(more + 1);
        for (size_t i = 0; i < features_in(more->sType); i++)
            if (on[i])
                fprintf(file, "%d:%zu ", more->sType, i);
        if (!features_in(more->sType) && more->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO)
            fprintf(file, "%d:unknown ", more->sType);
    }
    for (uint32_t i = 0; i < info->enabledExtensionCount; i++)
        fprintf(file, "%s ", info->ppEnabledExtensionNames[i]);
    fputc('\n', file);
    fclose(file);
}

// Make all features of a chain there, or not.
static void set_features(VkBaseOutStructure *chain, VkBool32 there)
{
    for (; chain; chain = chain->pNext)
        for (size_t i = 0; i < features_in(chain->sType); i++)
            ((VkBool32 *)(chain + 1))[i] = there;
}

static void VKAPI_CALL GetPhysicalDeviceFeatures2(VkPhysicalDevice device, VkPhysicalDeviceFeatures2 *all)
{
    unsigned long long n;
    instanceOf(device)->features2(device, all);
    if (getenv("AG_LIMITS_EVERY"))
        set_features((VkBaseOutStructure *)all, VK_TRUE);
    for (VkBaseOutStructure *more = all->pNext; more; more = more->pNext)
        if (more->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES &&
            number("AG_LIMITS_ADDRESSES", &n))
            ((VkPhysicalDeviceBufferDeviceAddressFeatures *)more)->bufferDeviceAddress = n != 0;
}

// ---- memory --------------------------------------------------------------------------------------

static VkDeviceSize used(uint32_t heap)
{
    VkDeviceSize bytes = 0;
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        if (kept[i].memory && kept[i].heap == heap)
            bytes += kept[i].size;
    return bytes;
}

static void keep(VkDeviceMemory memory, VkDeviceSize size, uint32_t heap)
{
    size_t i = 0;
    while (kept[i].memory)
        if (++i == sizeof kept / sizeof *kept)
            abort();
    kept[i].memory = memory;
    kept[i].size = size;
    kept[i].heap = heap;
}

static void describe(VkPhysicalDeviceMemoryProperties *memory)
{
    unsigned long long n;
    const char *text = getenv("AG_LIMITS_MEMORY");
    if (text)
        memory->memoryHeapCount = memory->memoryTypeCount = 0;
    for (; text && *text; text += *text == ',') {
        VkMemoryHeap *heap = &memory->memoryHeaps[memory->memoryHeapCount++];
        *heap = (VkMemoryHeap){.size = strtoull(text, (char **)&text, 0)};
        while (*text == ':') {
            VkMemoryType *type = &memory->memoryTypes[memory->memoryTypeCount++];
            type->propertyFlags = strtoul(text + 1, (char **)&text, 0);
            type->heapIndex = memory->memoryHeapCount - 1;
            if (type->propertyFlags & VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT)
                heap->flags = VK_MEMORY_HEAP_DEVICE_LOCAL_BIT;
        }
    }
    if (number("AG_LIMITS_HEAP", &n))
        memory->memoryHeaps[0].size = n;
}

static void VKAPI_CALL GetPhysicalDeviceMemoryProperties(VkPhysicalDevice device,
                                                         VkPhysicalDeviceMemoryProperties *memory)
{
    instanceOf(device)->memory(device, memory);
    describe(memory);
}

static void VKAPI_CALL GetPhysicalDeviceMemoryProperties2(VkPhysicalDevice device,
                                                          VkPhysicalDeviceMemoryProperties2 *all)
{
    unsigned long long budget;
    instanceOf(device)->memory2(device, all);
    describe(&all->memoryProperties);
    for (VkBaseOutStructure *more = all->pNext; more; more = more->pNext)
        if (more->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT &&
            number("AG_LIMITS_BUDGET", &budget))
            for (uint32_t i = 0; i < all->memoryProperties.memoryHeapCount; i++) {
                VkPhysicalDeviceMemoryBudgetPropertiesEXT *told = (VkPhysicalDeviceMemoryBudgetPropertiesEXT *)more;
                told->heapBudget[i] = i ? all->memoryProperties.memoryHeaps[i].size : budget;
                told->heapUsage[i] = used(i);
            }
}

static VkResult VKAPI_CALL EnumerateDeviceExtensionProperties(VkPhysicalDevice device, const char *layer, uint32_t *n,
                                                              VkExtensionProperties *names)
{
    const char *without = getenv("AG_LIMITS_WITHOUT");
    const char *every[] = {"VK_EXT_shader_atomic_float", "VK_EXT_subgroup_size_control", "VK_KHR_cooperative_matrix",
                           "VK_KHR_shader_bfloat16"};
    int changed = without != NULL || getenv("AG_LIMITS_EVERY") != NULL;
    for (int i = 0; i < ADDED; i++)
        changed |= getenv(added[i].variable) != NULL;
    if (layer || !changed)
        return instanceOf(device)->extensions(device, layer, n, names);
    VkExtensionProperties all[MOST + ADDED + 4];
    uint32_t found = MOST, kept = 0;
    VkResult result = instanceOf(device)->extensions(device, NULL, &found, all);
    if (result != VK_SUCCESS)
        return result;
    for (int i = 0; i < ADDED; i++)
        if (getenv(added[i].variable)) {
            all[found] = (VkExtensionProperties){.specVersion = 1};
            snprintf(all[found++].extensionName, VK_MAX_EXTENSION_NAME_SIZE, "%s", added[i].name);
        }
    for (size_t i = 0; getenv("AG_LIMITS_EVERY") && i < sizeof every / sizeof *every; i++)
        strcpy(all[found++].extensionName, every[i]);
    for (uint32_t i = 0; i < found; i++)
        if (!without || strcmp(without, all[i].extensionName))
            all[kept++] = all[i];
    const uint32_t given = !names || *n > kept ? kept : *n;
    if (names)
        memcpy(names, all, given * sizeof *all);
    *n = given;
    return given < kept ? VK_INCOMPLETE : VK_SUCCESS;
}

// ---- families of queues --------------------------------------------------------------------------

static void VKAPI_CALL GetPhysicalDeviceQueueFamilyProperties(VkPhysicalDevice device, uint32_t *n,
                                                              VkQueueFamilyProperties *found)
{
    const char *text = getenv("AG_LIMITS_QUEUES");
    if (!text) {
        instanceOf(device)->families(device, n, found);
        return;
    }
    VkQueueFamilyProperties first;
    uint32_t one = 1, room = found ? *n : MOST;
    instanceOf(device)->families(device, &one, &first);
    first.queueCount = 1;
    for (*n = 0; *n < room && *text; text += *text == ',') {
        first.queueFlags = strtoul(text, (char **)&text, 0);
        first.timestampValidBits = strtoul(text + 1, (char **)&text, 0);
        if (found)
            found[*n] = first;
        ++*n;
    }
}

static void VKAPI_CALL GetDeviceQueue(VkDevice handle, uint32_t family, uint32_t index, VkQueue *queue)
{
    note("AG_LIMITS_FAMILIES", 1, '0' + family);
    deviceOf(handle)->queue(handle, getenv("AG_LIMITS_QUEUES") ? 0 : family, index, queue);
}

static VkResult VKAPI_CALL CreateCommandPool(VkDevice handle, const VkCommandPoolCreateInfo *info,
                                             const VkAllocationCallbacks *callbacks, VkCommandPool *pool)
{
    note("AG_LIMITS_FAMILIES", 1, '0' + info->queueFamilyIndex);
    VkCommandPoolCreateInfo first = *info;
    first.queueFamilyIndex = getenv("AG_LIMITS_QUEUES") ? 0 : info->queueFamilyIndex;
    return deviceOf(handle)->commandPool(handle, &first, callbacks, pool);
}

// ---- what is refused, and what is counted --------------------------------------------------------

static VkResult VKAPI_CALL AllocateMemory(VkDevice handle, const VkMemoryAllocateInfo *info,
                                          const VkAllocationCallbacks *callbacks, VkDeviceMemory *memory)
{
    Device *device = deviceOf(handle);
    unsigned long long most;
    VkPhysicalDeviceMemoryProperties described = {0};
    describe(&described);
    const uint32_t heap = getenv("AG_LIMITS_MEMORY") ? described.memoryTypes[info->memoryTypeIndex].heapIndex : 0;
    if (device->limited) {
        if ((number("AG_LIMITS_ALLOC", &most) || number("AG_LIMITS_ALLOC_UNSAID", &most)) &&
            info->allocationSize > most)
            return VK_ERROR_OUT_OF_DEVICE_MEMORY;
        if (number("AG_LIMITS_ALLOCATIONS", &most) && device->allocations >= (long)most)
            return VK_ERROR_TOO_MANY_OBJECTS;
        if (number("AG_LIMITS_FULL", &most) && info->memoryTypeIndex == most)
            return VK_ERROR_OUT_OF_DEVICE_MEMORY;
        if (getenv("AG_LIMITS_MEMORY") && used(heap) + info->allocationSize > described.memoryHeaps[heap].size)
            return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    }
    note("AG_LIMITS_TYPES", 1, '0' + info->memoryTypeIndex);
    VkMemoryAllocateInfo first = *info;
    first.memoryTypeIndex = getenv("AG_LIMITS_MEMORY") ? 0 : info->memoryTypeIndex;
    VkResult result = device->allocate(handle, &first, callbacks, memory);
    device->allocations += result == VK_SUCCESS;
    if (result == VK_SUCCESS)
        keep(*memory, info->allocationSize, heap);
    return result;
}

static void VKAPI_CALL GetBufferMemoryRequirements(VkDevice handle, VkBuffer buffer, VkMemoryRequirements *needed)
{
    deviceOf(handle)->requirements(handle, buffer, needed);
    if (getenv("AG_LIMITS_MEMORY"))
        needed->memoryTypeBits = UINT32_MAX;
}

static void VKAPI_CALL FreeMemory(VkDevice handle, VkDeviceMemory memory, const VkAllocationCallbacks *callbacks)
{
    Device *device = deviceOf(handle);
    device->allocations -= memory != VK_NULL_HANDLE;
    for (size_t i = 0; memory && i < sizeof kept / sizeof *kept; i++)
        if (kept[i].memory == memory)
            kept[i].memory = VK_NULL_HANDLE;
    device->free(handle, memory, callbacks);
}

static void note_stage(const VkPipelineShaderStageCreateInfo *stage)
{
    const char *path = getenv("AG_LIMITS_STAGES");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    uint32_t size = 0;
    for (const VkBaseInStructure *more = stage->pNext; more; more = more->pNext)
        if (more->sType == VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_REQUIRED_SUBGROUP_SIZE_CREATE_INFO)
            size = ((const VkPipelineShaderStageRequiredSubgroupSizeCreateInfo *)more)->requiredSubgroupSize;
    fprintf(file, "%u %u\n", size, stage->flags);
    fclose(file);
}

static VkResult VKAPI_CALL CreateComputePipelines(VkDevice handle, VkPipelineCache cache, uint32_t n,
                                                  const VkComputePipelineCreateInfo *info,
                                                  const VkAllocationCallbacks *callbacks, VkPipeline *out)
{
    count("AG_LIMITS_PIPELINES", n);
    for (uint32_t i = 0; i < n; i++)
        note_stage(&info[i].stage);
    Device *device = deviceOf(handle);
    unsigned long long first;
    VkSpecializationMapEntry kept[MOST];
    VkSpecializationInfo fewer;
    VkComputePipelineCreateInfo other;
    const VkSpecializationInfo *given = n == 1 ? info->stage.pSpecializationInfo : NULL;
    if (device->limited && number("AG_LIMITS_SIZES", &first) && given && given->mapEntryCount <= MOST) {
        fewer = *given;
        fewer.pMapEntries = kept;
        fewer.mapEntryCount = 0;
        for (uint32_t i = 0; i < given->mapEntryCount; i++)
            if (given->pMapEntries[i].constantID < first || given->pMapEntries[i].constantID > 6)
                kept[fewer.mapEntryCount++] = given->pMapEntries[i];
        other = *info;
        other.stage.pSpecializationInfo = &fewer;
        info = &other;
    }
    return device->pipelines(handle, cache, n, info, callbacks, out);
}

// ---- the layer's place in the chain: each Create call takes its link and passes the rest on ------

static VkResult VKAPI_CALL CreateInstance(const VkInstanceCreateInfo *info,
                                          const VkAllocationCallbacks *callbacks, VkInstance *out)
{
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    latest = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    if (instanceCount == MOST)
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    VkResult result = ((PFN_vkCreateInstance)latest(NULL, "vkCreateInstance"))(info, callbacks, out);
    if (result == VK_SUCCESS)
        instances[instanceCount++] = (Instance){
            .key = *(void **)*out,
            .getProc = latest,
            .properties = (PFN_vkGetPhysicalDeviceProperties)latest(*out, "vkGetPhysicalDeviceProperties"),
            .properties2 = (PFN_vkGetPhysicalDeviceProperties2)latest(*out, "vkGetPhysicalDeviceProperties2"),
            .memory = (PFN_vkGetPhysicalDeviceMemoryProperties)latest(*out, "vkGetPhysicalDeviceMemoryProperties"),
            .memory2 = (PFN_vkGetPhysicalDeviceMemoryProperties2)latest(*out, "vkGetPhysicalDeviceMemoryProperties2"),
            .features2 = (PFN_vkGetPhysicalDeviceFeatures2)latest(*out, "vkGetPhysicalDeviceFeatures2"),
            .extensions = (PFN_vkEnumerateDeviceExtensionProperties)latest(*out, "vkEnumerateDeviceExtensionProperties"),
            .families = (PFN_vkGetPhysicalDeviceQueueFamilyProperties)latest(
                *out, "vkGetPhysicalDeviceQueueFamilyProperties"),
            .handle = *out,
        };
    return result;
}

static VkResult VKAPI_CALL CreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                        const VkAllocationCallbacks *callbacks, VkDevice *out)
{
    VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerDeviceCreateInfo *)link->pNext;
    PFN_vkGetInstanceProcAddr instanceProc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    PFN_vkGetDeviceProcAddr deviceProc = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    if (deviceCount == MOST)
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    Instance *instance = instanceOf(physical);
    VkPhysicalDeviceProperties own;
    instance->properties(physical, &own);
    PFN_vkCreateDevice create = (PFN_vkCreateDevice)instanceProc(instance->handle, "vkCreateDevice");
    VkDeviceCreateInfo other = *info;
    note_features(info);
    if (getenv("AG_LIMITS_EVERY")) {
        set_features((VkBaseOutStructure *)info->pNext, VK_FALSE);
        other.enabledExtensionCount = 0;
    }
    VkDeviceQueueCreateInfo queue = *info->pQueueCreateInfos;
    if (getenv("AG_LIMITS_QUEUES")) {
        queue.queueFamilyIndex = 0;
        other.pQueueCreateInfos = &queue;
    }
    VkResult result = create(physical, &other, callbacks, out);
    if (result == VK_SUCCESS) {
        count("AG_LIMITS_DEVICES", 1);
        devices[deviceCount++] = (Device){
            .key = *(void **)*out,
            .getProc = deviceProc,
            .allocate = (PFN_vkAllocateMemory)deviceProc(*out, "vkAllocateMemory"),
            .requirements = (PFN_vkGetBufferMemoryRequirements)deviceProc(*out, "vkGetBufferMemoryRequirements"),
            .free = (PFN_vkFreeMemory)deviceProc(*out, "vkFreeMemory"),
            .pipelines = (PFN_vkCreateComputePipelines)deviceProc(*out, "vkCreateComputePipelines"),
            .queue = (PFN_vkGetDeviceQueue)deviceProc(*out, "vkGetDeviceQueue"),
            .commandPool = (PFN_vkCreateCommandPool)deviceProc(*out, "vkCreateCommandPool"),
            .limited = concerns(own.deviceName),
        };
    }
    return result;
}

static PFN_vkVoidFunction own(const char *name);

static PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice device, const char *name)
{
    PFN_vkVoidFunction mine = own(name);
    return mine ? mine : deviceOf(device)->getProc(device, name);
}

static PFN_vkVoidFunction VKAPI_CALL GetInstanceProcAddr(VkInstance handle, const char *name)
{
    PFN_vkVoidFunction mine = own(name);
    if (mine || !latest)
        return mine;
    return handle ? instanceOf(handle)->getProc(handle, name) : latest(handle, name);
}

static PFN_vkVoidFunction own(const char *name)
{
    static const struct { const char *name; void *function; } calls[] = {
        {"vkGetInstanceProcAddr", GetInstanceProcAddr},
        {"vkGetDeviceProcAddr", GetDeviceProcAddr},
        {"vkCreateInstance", CreateInstance},
        {"vkCreateDevice", CreateDevice},
        {"vkGetPhysicalDeviceProperties", GetPhysicalDeviceProperties},
        {"vkGetPhysicalDeviceProperties2", GetPhysicalDeviceProperties2},
        {"vkGetPhysicalDeviceProperties2KHR", GetPhysicalDeviceProperties2},
        {"vkGetPhysicalDeviceFeatures2", GetPhysicalDeviceFeatures2},
        {"vkGetPhysicalDeviceFeatures2KHR", GetPhysicalDeviceFeatures2},
        {"vkGetPhysicalDeviceMemoryProperties", GetPhysicalDeviceMemoryProperties},
        {"vkGetPhysicalDeviceMemoryProperties2", GetPhysicalDeviceMemoryProperties2},
        {"vkGetPhysicalDeviceMemoryProperties2KHR", GetPhysicalDeviceMemoryProperties2},
        {"vkGetPhysicalDeviceQueueFamilyProperties", GetPhysicalDeviceQueueFamilyProperties},
        {"vkGetDeviceQueue", GetDeviceQueue},
        {"vkCreateCommandPool", CreateCommandPool},
        {"vkEnumerateDeviceExtensionProperties", EnumerateDeviceExtensionProperties},
        {"vkAllocateMemory", AllocateMemory},
        {"vkGetBufferMemoryRequirements", GetBufferMemoryRequirements},
        {"vkFreeMemory", FreeMemory},
        {"vkCreateComputePipelines", CreateComputePipelines},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (!strcmp(name, calls[i].name))
            return (PFN_vkVoidFunction)calls[i].function;
    return NULL;
}

__attribute__((visibility("default"))) VkResult VKAPI_CALL
vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *version)
{
    version->loaderLayerInterfaceVersion = 2;
    version->pfnGetInstanceProcAddr = GetInstanceProcAddr;
    version->pfnGetDeviceProcAddr = GetDeviceProcAddr;
    version->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
