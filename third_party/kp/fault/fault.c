// A Vulkan layer for tests: it makes a healthy device run out of memory, get lost, be slow or take no time.
//
//   KPFAULT_ALLOC_LIMIT=<bytes>  vkAllocateMemory fails once a device has been given that much in all
//                                (memory that is freed is not counted back)
//   KPFAULT_MAP_LIMIT=<bytes>    of more memory than that nothing can be mapped at once: as if the host did not see it
//   KPFAULT_LOST_AFTER=<n>       the device is lost after n fence waits: later waits and submits fail
//   KPFAULT_TDR_MS=<ms>          a watchdog: the device is lost when a submission has taken longer; submissions wait
//   KPFAULT_DELAY_US=<us>        no fence is seen to be signalled before its submission is that old
//   KPFAULT_NULL=1               nothing that is submitted runs, and it ends at once, so that what is left is the host's
//                                time; no driver's thread is woken for it
//   KPFAULT_LINK_GBPS=<n>        with that, a submission ends when the bytes it copies between buffers have passed
//                                at so many GB/s, after those of the submissions before it
//   KPFAULT_PIPELINE_MS=<ms>     a pipeline takes so much longer to make
//   KPFAULT_PIPELINES=<file>     for each, the number of those that are being made is appended, in a line
//   KPFAULT_NO_PIPELINES=1       none can be made
//   KPFAULT_REFUSE=<call>,...    these calls, of those in REFUSABLE and all others here, do nothing and fail ...
//   KPFAULT_RESULT=<n>           ... with this VkResult; else there is no memory of the device
//   KPFAULT_DEVICE=<k>           only the k-th device created, from 0, is at fault; else every device
//
// Settings are looked at in every call, so a process may change its own.
//
// Build:  cc -shared -fPIC -o libkpfault.so fault.c      (Vulkan headers only)
// Use:    VK_LAYER_PATH=<folder of the .json and .so> VK_INSTANCE_LAYERS=VK_LAYER_KP_fault program
//
// Not thread-safe: the caller must not create devices in two threads at once.

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

enum { MAX_DEVICES = 64, MAX_FENCES = 256, MAX_BUFFERS = 4096 };

// Calls that do nothing here but to be refused: name, parameters and arguments; the first one leads to the device.
#define REFUSABLE(X)                                                                                                  \
    X(CreateCommandPool, (VkDevice at, const VkCommandPoolCreateInfo *a, const VkAllocationCallbacks *b,              \
                          VkCommandPool *c), (at, a, b, c))                                                           \
    X(AllocateCommandBuffers, (VkDevice at, const VkCommandBufferAllocateInfo *a, VkCommandBuffer *b), (at, a, b))    \
    X(EndCommandBuffer, (VkCommandBuffer at), (at))                                                                   \
    X(CreateFence, (VkDevice at, const VkFenceCreateInfo *a, const VkAllocationCallbacks *b, VkFence *c),             \
      (at, a, b, c))                                                                                                  \
    X(CreateQueryPool, (VkDevice at, const VkQueryPoolCreateInfo *a, const VkAllocationCallbacks *b, VkQueryPool *c), \
      (at, a, b, c))                                                                                                  \
    X(GetQueryPoolResults, (VkDevice at, VkQueryPool a, uint32_t b, uint32_t c, size_t d, void *e, VkDeviceSize f,    \
                            VkQueryResultFlags g), (at, a, b, c, d, e, f, g))                                         \
    X(CreateDescriptorPool, (VkDevice at, const VkDescriptorPoolCreateInfo *a, const VkAllocationCallbacks *b,        \
                             VkDescriptorPool *c), (at, a, b, c))                                                     \
    X(CreateShaderModule, (VkDevice at, const VkShaderModuleCreateInfo *a, const VkAllocationCallbacks *b,            \
                           VkShaderModule *c), (at, a, b, c))                                                         \
    X(CreateBuffer, (VkDevice at, const VkBufferCreateInfo *a, const VkAllocationCallbacks *b, VkBuffer *c),          \
      (at, a, b, c))

typedef struct {
    VkFence fence;
    double since, ends; // when it was made, and when its copies have passed
    int null;           // the driver does not know of it
} Submission;

// What we know of one VkDevice.  A device and its queues begin with the same pointer, the loader's
// dispatch table, which serves as the key.
typedef struct {
    void *key;
    PFN_vkGetDeviceProcAddr getProc;
    PFN_vkAllocateMemory allocateMemory;
    PFN_vkWaitForFences waitForFences;
    PFN_vkQueueSubmit queueSubmit;
    PFN_vkQueueWaitIdle queueWaitIdle;
    PFN_vkBeginCommandBuffer beginCommandBuffer;
    PFN_vkCmdCopyBuffer cmdCopyBuffer;
    PFN_vkCreateComputePipelines createPipelines;
    PFN_vkMapMemory mapMemory;
#define FIELD(name, parameters, arguments) PFN_vk##name name;
    REFUSABLE(FIELD)
    unsigned long long allocated; // bytes, in all
    long waits;
    int killed; // by the watchdog
    Submission submitted[MAX_FENCES]; // in turn
    unsigned submissions;
    double busy; // until when the link is
} Device;

static struct { VkCommandBuffer handle; double bytes; } copies[MAX_BUFFERS]; // what each command buffer copies
static int bufferCount;
static Device devices[MAX_DEVICES];
static int deviceCount;
static atomic_int making; // pipelines
static VkInstance instance;
static PFN_vkGetInstanceProcAddr nextInstanceProc;

static Device *find(void *handle)
{
    // From the back: a key may come again after its device was destroyed.
    for (int i = deviceCount - 1; i >= 0; i--)
        if (devices[i].key == *(void **)handle)
            return &devices[i];
    abort();
}

// The setting, if there is one and it concerns this device.
static const char *setting(const char *name, const Device *device)
{
    const char *only = getenv("KPFAULT_DEVICE");
    if (only && atoi(only) != (int)(device - devices))
        return NULL;
    return getenv(name);
}

// What a call of that name is to fail with; VK_SUCCESS if it is to go on.
static VkResult refused(const Device *device, const char *call)
{
    const char *calls = setting("KPFAULT_REFUSE", device), *result = setting("KPFAULT_RESULT", device);
    if (!calls || !strstr(calls, call))
        return VK_SUCCESS;
    return result ? (VkResult)atoi(result) : VK_ERROR_OUT_OF_DEVICE_MEMORY;
}

static int lost(const Device *device)
{
    const char *after = setting("KPFAULT_LOST_AFTER", device);
    return device->killed || (after && device->waits > atol(after));
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

// The latest submission that a fence was given to.
static Submission latest_of(const Device *device, VkFence fence)
{
    Submission latest = {0};
    for (int i = 0; i < MAX_FENCES; i++)
        if (device->submitted[i].fence == fence && device->submitted[i].since > latest.since)
            latest = device->submitted[i];
    return latest;
}

static double *copied_by(VkCommandBuffer handle)
{
    for (int i = 0; i < bufferCount; i++)
        if (copies[i].handle == handle)
            return &copies[i].bytes;
    if (bufferCount == MAX_BUFFERS)
        abort();
    copies[bufferCount].handle = handle;
    return &copies[bufferCount++].bytes;
}

// Whether that time came within so many nanoseconds.  Spins at the end, as sleeping takes 50 us longer than asked for.
static int sleep_until(double end, uint64_t timeout)
{
    const double last = timeout > 1000000000000 ? end : now_s() + 1e-9 * timeout;
    const double until = end < last ? end : last;
    for (double left; (left = until - now_s()) > 0;)
        if (left > 2e-4)
            nanosleep(&(struct timespec){.tv_nsec = left < 0.5 ? 1e9 * (left - 1e-4) : 400000000}, NULL);
    return end <= last;
}

// ---- the calls that fail -------------------------------------------------------------------------

static VkResult VKAPI_CALL AllocateMemory(VkDevice handle, const VkMemoryAllocateInfo *info,
                                          const VkAllocationCallbacks *callbacks, VkDeviceMemory *memory)
{
    Device *device = find(handle);
    const char *limit = setting("KPFAULT_ALLOC_LIMIT", device);
    const VkResult refusal = refused(device, "vkAllocateMemory");
    if (refusal)
        return refusal;
    if (limit && device->allocated + info->allocationSize > strtoull(limit, NULL, 0))
        return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkResult result = device->allocateMemory(handle, info, callbacks, memory);
    if (result == VK_SUCCESS)
        device->allocated += info->allocationSize;
    return result;
}

static VkResult VKAPI_CALL MapMemory(VkDevice handle, VkDeviceMemory memory, VkDeviceSize offset, VkDeviceSize size,
                                     VkMemoryMapFlags flags, void **out)
{
    Device *device = find(handle);
    const char *limit = setting("KPFAULT_MAP_LIMIT", device);
    const VkResult refusal = refused(device, "vkMapMemory");
    if (refusal)
        return refusal;
    if (limit && size > strtoull(limit, NULL, 0)) // VK_WHOLE_SIZE is more, too
        return VK_ERROR_MEMORY_MAP_FAILED;
    return device->mapMemory(handle, memory, offset, size, flags, out);
}

static VkResult VKAPI_CALL WaitForFences(VkDevice handle, uint32_t count, const VkFence *fences,
                                         VkBool32 all, uint64_t timeout)
{
    Device *device = find(handle);
    const VkResult refusal = refused(device, "vkWaitForFences");
    if (refusal)
        return refusal;
    device->waits++;
    // A device that is really lost has stopped working; this one must be let finish, or its owner frees what it uses.
    const Submission last = latest_of(device, fences[0]);
    VkResult result = last.null ? VK_SUCCESS : device->waitForFences(handle, count, fences, all, timeout);
    if (lost(device))
        return VK_ERROR_DEVICE_LOST;
    const char *delay = setting("KPFAULT_DELAY_US", device);
    if (delay && result == VK_SUCCESS && !sleep_until(last.since + 1e-6 * atof(delay), timeout))
        return VK_TIMEOUT;
    if (last.ends > 0 && result == VK_SUCCESS && !sleep_until(last.ends, timeout))
        return VK_TIMEOUT;
    return result;
}

static VkResult VKAPI_CALL BeginCommandBuffer(VkCommandBuffer buffer, const VkCommandBufferBeginInfo *info)
{
    const VkResult refusal = refused(find(buffer), "vkBeginCommandBuffer");
    if (refusal)
        return refusal;
    *copied_by(buffer) = 0;
    return find(buffer)->beginCommandBuffer(buffer, info);
}

static void VKAPI_CALL CmdCopyBuffer(VkCommandBuffer buffer, VkBuffer from, VkBuffer to, uint32_t count,
                                     const VkBufferCopy *regions)
{
    for (uint32_t i = 0; i < count; i++)
        *copied_by(buffer) += regions[i].size;
    find(buffer)->cmdCopyBuffer(buffer, from, to, count, regions);
}

static VkResult VKAPI_CALL QueueSubmit(VkQueue queue, uint32_t count, const VkSubmitInfo *submits,
                                       VkFence fence)
{
    Device *device = find(queue);
    const VkResult refusal = refused(device, "vkQueueSubmit");
    if (lost(device) || refusal)
        return refusal ? refusal : VK_ERROR_DEVICE_LOST;
    const char *limit = setting("KPFAULT_TDR_MS", device);
    const char *link = setting("KPFAULT_LINK_GBPS", device);
    const double begin = now_s();
    double bytes = 0;
    for (uint32_t i = 0; link && i < count; i++)
        for (uint32_t k = 0; k < submits[i].commandBufferCount; k++)
            bytes += *copied_by(submits[i].pCommandBuffers[k]);
    if (bytes > 0)
        device->busy = (begin > device->busy ? begin : device->busy) + bytes / (1e9 * atof(link));
    const int null = setting("KPFAULT_NULL", device) != NULL;
    device->submitted[device->submissions++ % MAX_FENCES] =
        (Submission){.fence = fence, .since = begin, .ends = link ? device->busy : 0, .null = null};
    if (null)
        return VK_SUCCESS;
    VkResult result = device->queueSubmit(queue, count, submits, fence);
    if (limit && result == VK_SUCCESS) {
        result = device->queueWaitIdle(queue);
        device->killed = 1e3 * (now_s() - begin) > atof(limit);
    }
    return result;
}

static VkResult VKAPI_CALL CreateComputePipelines(VkDevice handle, VkPipelineCache cache, uint32_t count,
                                                  const VkComputePipelineCreateInfo *infos,
                                                  const VkAllocationCallbacks *callbacks, VkPipeline *out)
{
    Device *device = find(handle);
    const VkResult refusal = refused(device, "vkCreateComputePipelines");
    if (refusal)
        return refusal;
    const char *late = setting("KPFAULT_PIPELINE_MS", device), *path = setting("KPFAULT_PIPELINES", device);
    const int now = atomic_fetch_add(&making, 1) + 1;
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%d\n", now);
        fclose(file);
    }
    if (late)
        sleep_until(now_s() + 1e-3 * atof(late), UINT64_MAX);
    VkResult result = VK_ERROR_INITIALIZATION_FAILED;
    if (!setting("KPFAULT_NO_PIPELINES", device))
        result = device->createPipelines(handle, cache, count, infos, callbacks, out);
    atomic_fetch_sub(&making, 1);
    return result;
}

#define REFUSING(name, parameters, arguments)                                                                         \
    static VkResult VKAPI_CALL name parameters                                                                        \
    {                                                                                                                 \
        Device *device = find(at);                                                                                    \
        const VkResult refusal = refused(device, "vk" #name);                                                         \
        return refusal ? refusal : device->name arguments;                                                            \
    }
REFUSABLE(REFUSING)

// ---- the layer's place in the chain: each Create call takes its link and passes the rest on ------

static VkResult VKAPI_CALL CreateInstance(const VkInstanceCreateInfo *info,
                                          const VkAllocationCallbacks *callbacks, VkInstance *out)
{
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    nextInstanceProc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    PFN_vkCreateInstance create = (PFN_vkCreateInstance)nextInstanceProc(NULL, "vkCreateInstance");
    VkResult result = create(info, callbacks, out);
    if (result == VK_SUCCESS)
        instance = *out;
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
    if (deviceCount == MAX_DEVICES)
        return VK_ERROR_OUT_OF_HOST_MEMORY;
    const VkResult refusal = refused(&devices[deviceCount], "vkCreateDevice");
    if (refusal)
        return refusal;
    PFN_vkCreateDevice create = (PFN_vkCreateDevice)instanceProc(instance, "vkCreateDevice");
    VkResult result = create(physical, info, callbacks, out);
    if (result == VK_SUCCESS)
        devices[deviceCount++] = (Device){
            .key = *(void **)*out,
            .getProc = deviceProc,
            .allocateMemory = (PFN_vkAllocateMemory)deviceProc(*out, "vkAllocateMemory"),
            .waitForFences = (PFN_vkWaitForFences)deviceProc(*out, "vkWaitForFences"),
            .queueSubmit = (PFN_vkQueueSubmit)deviceProc(*out, "vkQueueSubmit"),
            .queueWaitIdle = (PFN_vkQueueWaitIdle)deviceProc(*out, "vkQueueWaitIdle"),
            .beginCommandBuffer = (PFN_vkBeginCommandBuffer)deviceProc(*out, "vkBeginCommandBuffer"),
            .cmdCopyBuffer = (PFN_vkCmdCopyBuffer)deviceProc(*out, "vkCmdCopyBuffer"),
            .mapMemory = (PFN_vkMapMemory)deviceProc(*out, "vkMapMemory"),
            .createPipelines = (PFN_vkCreateComputePipelines)deviceProc(*out, "vkCreateComputePipelines"),
#define FOUND(name, parameters, arguments) .name = (PFN_vk##name)deviceProc(*out, "vk" #name),
            REFUSABLE(FOUND)
        };
    return result;
}

static PFN_vkVoidFunction own(const char *name);

static PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice device, const char *name)
{
    PFN_vkVoidFunction mine = own(name);
    return mine ? mine : find(device)->getProc(device, name);
}

static PFN_vkVoidFunction VKAPI_CALL GetInstanceProcAddr(VkInstance handle, const char *name)
{
    PFN_vkVoidFunction mine = own(name);
    if (mine || !nextInstanceProc)
        return mine;
    return nextInstanceProc(handle, name);
}

static PFN_vkVoidFunction own(const char *name)
{
    static const struct { const char *name; void *function; } calls[] = {
        {"vkGetInstanceProcAddr", GetInstanceProcAddr},
        {"vkGetDeviceProcAddr", GetDeviceProcAddr},
        {"vkCreateInstance", CreateInstance},
        {"vkCreateDevice", CreateDevice},
        {"vkAllocateMemory", AllocateMemory},
        {"vkWaitForFences", WaitForFences},
        {"vkQueueSubmit", QueueSubmit},
        {"vkBeginCommandBuffer", BeginCommandBuffer},
        {"vkCmdCopyBuffer", CmdCopyBuffer},
        {"vkMapMemory", MapMemory},
        {"vkCreateComputePipelines", CreateComputePipelines},
#define OWN(name, parameters, arguments) {"vk" #name, name},
        REFUSABLE(OWN)
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
