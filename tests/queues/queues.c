// A Vulkan layer for tests: it gives a software driver, which has one queue, a second one that only copies, and lets
// the two run in the order that is worst for whoever has forgotten to say in which order they must.
//
//   AG_QUEUES_FIRST=launches   copies come as late as they may: when launches wait for them, or the host does
//   AG_QUEUES_FIRST=copies     copies come at once, before all launches that the host has not waited for, and of those
//                              that came together the last first: one submission does not wait for the end of another
//   AG_QUEUES_LOG=<file>       a letter is appended for every submission when it starts: l for launches, c for copies
//   AG_QUEUES_SHARED=<file>    a line for every buffer that is made: whether several families share it, and how many
//   AG_QUEUES_TIMELINE=0       there are no timeline semaphores
//
// What is submitted is kept until the host waits for a fence.  Then submissions go to the driver's queue one by one,
// always the first of one of the two lists whose semaphores others have signalled before.  The driver runs them in that
// order, so nothing is ever held up there.  The same could happen on a card with two queues, on a bad day.
//
// Build:  cc -shared -fPIC -o libagqueues.so queues.c      (Vulkan headers only)
// Use:    VK_LAYER_PATH=<folder of the .json and .so> VK_INSTANCE_LAYERS=VK_LAYER_AG_queues program
//
// For programs that submit from one thread at a time, and wait in several; for one device, with one other queue.

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

enum { MOST = 4096, BUFFERS = 64, SEMAPHORES = 4 };

typedef struct {
    VkCommandBuffer buffers[BUFFERS];
    uint32_t bufferCount;
    VkSemaphore waits[SEMAPHORES], signals[SEMAPHORES];
    uint64_t waitValues[SEMAPHORES], signalValues[SEMAPHORES];
    uint32_t waitCount, signalCount;
    VkFence fence;
} Submission;

typedef struct {
    Submission kept[MOST]; // in turn
    unsigned first, end;   // the first that was not started, and where the next goes
} Queue;

static Queue launches, copies;
static VkResult failed; // of a submission that was to start; nothing starts then
static struct { VkSemaphore semaphore; uint64_t value; } signalled[SEMAPHORES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static VkQueue real;                  // the driver's
static struct { void *key; } second;  // what stands for the other: a queue begins with the loader's dispatch table
static PFN_vkGetInstanceProcAddr nextInstanceProc;
static PFN_vkGetDeviceProcAddr nextDeviceProc;
static VkInstance instance; // the latest
static VkDevice device;
static PFN_vkGetPhysicalDeviceQueueFamilyProperties nextFamilies;
static PFN_vkGetPhysicalDeviceFeatures2 nextFeatures2;

#define NEXT(name) ((PFN_vk##name)nextDeviceProc(device, "vk" #name))

static int copiesFirst(void)
{
    const char *first = getenv("AG_QUEUES_FIRST");
    return first && !strcmp(first, "copies");
}

// ---- the order in which submissions start --------------------------------------------------------

static uint64_t *valueOf(VkSemaphore semaphore)
{
    for (int i = 0; i < SEMAPHORES; i++)
        if (signalled[i].semaphore == semaphore || !signalled[i].semaphore) {
            signalled[i].semaphore = semaphore;
            return &signalled[i].value;
        }
    abort();
}

static int mayStart(const Queue *queue)
{
    if (queue->first == queue->end)
        return 0;
    const Submission *next = &queue->kept[queue->first % MOST];
    for (uint32_t i = 0; i < next->waitCount; i++)
        if (*valueOf(next->waits[i]) < next->waitValues[i])
            return 0;
    return 1;
}

// Of submissions that came together, run what came last first, before any is said to have ended.
static void reverse(Queue *queue)
{
    Submission *first = &queue->kept[queue->first % MOST];
    for (unsigned i = queue->first + 1; i < queue->end; i++) {
        Submission *later = &queue->kept[i % MOST];
        if (first->bufferCount + later->bufferCount > BUFFERS)
            abort();
        memmove(first->buffers + later->bufferCount, first->buffers, first->bufferCount * sizeof *first->buffers);
        memcpy(first->buffers, later->buffers, later->bufferCount * sizeof *first->buffers);
        first->bufferCount += later->bufferCount;
        later->bufferCount = 0;
    }
}

static void start(Queue *queue)
{
    const Submission *next = &queue->kept[queue->first++ % MOST];
    VkPipelineStageFlags all[SEMAPHORES];
    for (int i = 0; i < SEMAPHORES; i++)
        all[i] = VK_PIPELINE_STAGE_ALL_COMMANDS_BIT;
    const VkTimelineSemaphoreSubmitInfo values = {
        .sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
        .waitSemaphoreValueCount = next->waitCount, .pWaitSemaphoreValues = next->waitValues,
        .signalSemaphoreValueCount = next->signalCount, .pSignalSemaphoreValues = next->signalValues};
    const VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .pNext = &values,
        .waitSemaphoreCount = next->waitCount, .pWaitSemaphores = next->waits, .pWaitDstStageMask = all,
        .commandBufferCount = next->bufferCount, .pCommandBuffers = next->buffers,
        .signalSemaphoreCount = next->signalCount, .pSignalSemaphores = next->signals};
    if ((failed = NEXT(QueueSubmit)(real, 1, &info, next->fence)) != VK_SUCCESS)
        return; // another layer may have lost the device
    for (uint32_t i = 0; i < next->signalCount; i++)
        *valueOf(next->signals[i]) = next->signalValues[i];
    const char *path = getenv("AG_QUEUES_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fputc(queue == &launches ? 'l' : 'c', file);
        fclose(file);
    }
}

static int keeps(const Queue *queue, VkFence fence)
{
    for (unsigned i = queue->first; i != queue->end; i++)
        if (queue->kept[i % MOST].fence == fence)
            return 1;
    return 0;
}

// Start what must be, and what may be before, until the submission with this fence is; all of them if it is none's.
static void startUntil(VkFence fence)
{
    pthread_mutex_lock(&lock);
    Queue *eager = copiesFirst() ? &copies : &launches, *other = copiesFirst() ? &launches : &copies;
    while (failed ? 0 : fence ? keeps(&launches, fence) || keeps(&copies, fence)
                 : launches.first != launches.end || copies.first != copies.end) {
        if (eager == &copies)
            reverse(eager);
        while (!failed && mayStart(eager))
            start(eager);
        if (failed || (fence && !keeps(&launches, fence) && !keeps(&copies, fence)))
            break;
        if (mayStart(other))
            start(other);
        else if (!mayStart(eager))
            abort(); // each waits for the other
    }
    pthread_mutex_unlock(&lock);
}

// ---- what is submitted, and what the host waits for ----------------------------------------------

static VkResult VKAPI_CALL QueueSubmit(VkQueue handle, uint32_t count, const VkSubmitInfo *infos, VkFence fence)
{
    Queue *queue = handle == (VkQueue)&second ? &copies : &launches;
    if (failed)
        return failed;
    pthread_mutex_lock(&lock);
    if (queue->end - queue->first == MOST || count != 1 || infos->commandBufferCount > BUFFERS ||
        infos->waitSemaphoreCount > SEMAPHORES || infos->signalSemaphoreCount > SEMAPHORES)
        abort();
    Submission *kept = &queue->kept[queue->end % MOST];
    *kept = (Submission){.fence = fence, .bufferCount = infos->commandBufferCount,
                         .waitCount = infos->waitSemaphoreCount, .signalCount = infos->signalSemaphoreCount};
    memcpy(kept->buffers, infos->pCommandBuffers, infos->commandBufferCount * sizeof *kept->buffers);
    memcpy(kept->waits, infos->pWaitSemaphores, infos->waitSemaphoreCount * sizeof *kept->waits);
    memcpy(kept->signals, infos->pSignalSemaphores, infos->signalSemaphoreCount * sizeof *kept->signals);
    const VkBaseInStructure *more = infos->pNext;
    while (more && more->sType != VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO)
        more = more->pNext;
    const VkTimelineSemaphoreSubmitInfo *values = (const VkTimelineSemaphoreSubmitInfo *)more;
    if (kept->waitCount + kept->signalCount > 0 &&
        (!values || values->waitSemaphoreValueCount != kept->waitCount ||
         values->signalSemaphoreValueCount != kept->signalCount))
        abort(); // a timeline's value is missing
    for (uint32_t i = 0; i < kept->waitCount; i++)
        kept->waitValues[i] = values->pWaitSemaphoreValues[i];
    for (uint32_t i = 0; i < kept->signalCount; i++)
        kept->signalValues[i] = values->pSignalSemaphoreValues[i];
    queue->end++;
    pthread_mutex_unlock(&lock);
    return VK_SUCCESS;
}

static VkResult VKAPI_CALL WaitForFences(VkDevice handle, uint32_t count, const VkFence *fences, VkBool32 all,
                                         uint64_t timeout)
{
    for (uint32_t i = 0; i < count; i++)
        startUntil(fences[i]);
    return failed ? failed : NEXT(WaitForFences)(handle, count, fences, all, timeout);
}

static VkResult VKAPI_CALL GetFenceStatus(VkDevice handle, VkFence fence)
{
    startUntil(fence);
    return failed ? failed : NEXT(GetFenceStatus)(handle, fence);
}

static VkResult VKAPI_CALL DeviceWaitIdle(VkDevice handle)
{
    startUntil(VK_NULL_HANDLE);
    return failed ? failed : NEXT(DeviceWaitIdle)(handle);
}

// ---- the family that is not there ----------------------------------------------------------------

static void VKAPI_CALL GetPhysicalDeviceQueueFamilyProperties(VkPhysicalDevice physical, uint32_t *n,
                                                              VkQueueFamilyProperties *found)
{
    if (!found) {
        nextFamilies(physical, n, NULL);
        ++*n;
        return;
    }
    const uint32_t room = *n;
    nextFamilies(physical, n, found);
    if (*n < room)
        found[(*n)++] = (VkQueueFamilyProperties){.queueFlags = VK_QUEUE_TRANSFER_BIT, .queueCount = 1};
}

static void VKAPI_CALL GetPhysicalDeviceFeatures2(VkPhysicalDevice physical, VkPhysicalDeviceFeatures2 *all)
{
    nextFeatures2(physical, all);
    const char *timeline = getenv("AG_QUEUES_TIMELINE");
    for (VkBaseOutStructure *more = all->pNext; more; more = more->pNext)
        if (timeline && more->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES)
            ((VkPhysicalDeviceTimelineSemaphoreFeatures *)more)->timelineSemaphore = atoi(timeline) != 0;
}

static void VKAPI_CALL GetDeviceQueue(VkDevice handle, uint32_t family, uint32_t index, VkQueue *queue)
{
    NEXT(GetDeviceQueue)(handle, 0, index, &real);
    second.key = *(void **)real;
    *queue = family ? (VkQueue)&second : real;
}

static VkResult VKAPI_CALL CreateCommandPool(VkDevice handle, const VkCommandPoolCreateInfo *info,
                                             const VkAllocationCallbacks *callbacks, VkCommandPool *pool)
{
    VkCommandPoolCreateInfo first = *info;
    first.queueFamilyIndex = 0;
    return NEXT(CreateCommandPool)(handle, &first, callbacks, pool);
}

static VkResult VKAPI_CALL CreateBuffer(VkDevice handle, const VkBufferCreateInfo *info,
                                        const VkAllocationCallbacks *callbacks, VkBuffer *buffer)
{
    VkBufferCreateInfo own = *info;
    own.sharingMode = VK_SHARING_MODE_EXCLUSIVE;
    const char *path = getenv("AG_QUEUES_SHARED");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fprintf(file, "%d %u\n", info->sharingMode == VK_SHARING_MODE_CONCURRENT, info->queueFamilyIndexCount);
        fclose(file);
    }
    return NEXT(CreateBuffer)(handle, &own, callbacks, buffer);
}

// ---- the layer's place in the chain: each Create call takes its link and passes the rest on ------

static VkResult VKAPI_CALL CreateInstance(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *callbacks,
                                          VkInstance *out)
{
    VkLayerInstanceCreateInfo *link = (VkLayerInstanceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerInstanceCreateInfo *)link->pNext;
    nextInstanceProc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateInstance)nextInstanceProc(NULL, "vkCreateInstance"))(info, callbacks, out);
    if (result == VK_SUCCESS) {
        instance = *out;
        nextFamilies = (PFN_vkGetPhysicalDeviceQueueFamilyProperties)nextInstanceProc(
            instance, "vkGetPhysicalDeviceQueueFamilyProperties");
        nextFeatures2 = (PFN_vkGetPhysicalDeviceFeatures2)nextInstanceProc(instance, "vkGetPhysicalDeviceFeatures2");
    }
    return result;
}

static VkResult VKAPI_CALL CreateDevice(VkPhysicalDevice physical, const VkDeviceCreateInfo *info,
                                        const VkAllocationCallbacks *callbacks, VkDevice *out)
{
    VkLayerDeviceCreateInfo *link = (VkLayerDeviceCreateInfo *)info->pNext;
    while (link->sType != VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO || link->function != VK_LAYER_LINK_INFO)
        link = (VkLayerDeviceCreateInfo *)link->pNext;
    PFN_vkGetInstanceProcAddr instanceProc = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    nextDeviceProc = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkDeviceCreateInfo own = *info;
    VkDeviceQueueCreateInfo queue = *info->pQueueCreateInfos;
    queue.queueFamilyIndex = 0;
    own.queueCreateInfoCount = 1;
    own.pQueueCreateInfos = &queue;
    VkResult result = ((PFN_vkCreateDevice)instanceProc(instance, "vkCreateDevice"))(physical, &own, callbacks, out);
    if (result == VK_SUCCESS)
        device = *out;
    return result;
}

static PFN_vkVoidFunction own(const char *name);

static PFN_vkVoidFunction VKAPI_CALL GetDeviceProcAddr(VkDevice handle, const char *name)
{
    PFN_vkVoidFunction mine = own(name);
    return mine ? mine : nextDeviceProc(handle, name);
}

static PFN_vkVoidFunction VKAPI_CALL GetInstanceProcAddr(VkInstance handle, const char *name)
{
    PFN_vkVoidFunction mine = own(name);
    return mine || !nextInstanceProc ? mine : nextInstanceProc(handle, name);
}

static PFN_vkVoidFunction own(const char *name)
{
    static const struct { const char *name; void *function; } calls[] = {
        {"vkGetInstanceProcAddr", GetInstanceProcAddr},
        {"vkGetDeviceProcAddr", GetDeviceProcAddr},
        {"vkCreateInstance", CreateInstance},
        {"vkCreateDevice", CreateDevice},
        {"vkGetPhysicalDeviceQueueFamilyProperties", GetPhysicalDeviceQueueFamilyProperties},
        {"vkGetPhysicalDeviceFeatures2", GetPhysicalDeviceFeatures2},
        {"vkGetPhysicalDeviceFeatures2KHR", GetPhysicalDeviceFeatures2},
        {"vkGetDeviceQueue", GetDeviceQueue},
        {"vkCreateCommandPool", CreateCommandPool},
        {"vkCreateBuffer", CreateBuffer},
        {"vkQueueSubmit", QueueSubmit},
        {"vkWaitForFences", WaitForFences},
        {"vkGetFenceStatus", GetFenceStatus},
        {"vkDeviceWaitIdle", DeviceWaitIdle},
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
