// What Python learns about a device: identity, limits, compute units, memory heaps.  kp 0.9.0 tells the name and the
// workgroup limits only.  Used by extend.hpp.
#pragma once
#include "queues.hpp"
#include <bitset>
#include <kompute/Kompute.hpp>
#include <pybind11/pybind11.h>
#include <set>
#include <string>
#include <vector>

namespace ag {

inline std::set<std::string>
extensionsOf(const vk::PhysicalDevice& device)
{
    std::set<std::string> names;
    for (const vk::ExtensionProperties& extension : device.enumerateDeviceExtensionProperties())
        names.insert(extension.extensionName.data());
    return names;
}

/// Which sizes of subgroups a compute pipeline may require, all invocations being active; 0 to 0: none.
struct SubgroupSizes
{
    uint32_t least = 0;
    uint32_t most = 0;
    uint32_t perWorkgroup = 0; // how many subgroups a workgroup may have then

    bool has(uint32_t size) const
    {
        return least && size >= least && size <= most && !(size & (size - 1));
    }
};

inline SubgroupSizes
subgroupSizes(const vk::PhysicalDevice& device)
{
    if (!extensionsOf(device).count("VK_EXT_subgroup_size_control"))
        return {};
    vk::PhysicalDeviceSubgroupSizeControlFeatures can;
    vk::PhysicalDeviceFeatures2 features;
    features.pNext = &can;
    device.getFeatures2(&features);
    vk::PhysicalDeviceSubgroupSizeControlProperties sizes;
    vk::PhysicalDeviceProperties2 properties;
    properties.pNext = &sizes;
    device.getProperties2(&properties);
    const bool stage(sizes.requiredSubgroupSizeStages & vk::ShaderStageFlagBits::eCompute);
    if (!can.subgroupSizeControl || !can.computeFullSubgroups || !stage)
        return {};
    return { sizes.minSubgroupSize, sizes.maxSubgroupSize, sizes.maxComputeWorkgroupSubgroups };
}

/// VkPhysicalDeviceShaderCoreBuiltinsPropertiesARM, which is younger than the headers of Ubuntu 22.04.
struct CoreBuiltinsProperties
{
    VkStructureType sType = (VkStructureType)1000497001;
    void* pNext = nullptr;
    uint64_t mask = 0;
    uint32_t count = 0;
    uint32_t warpsPerCore = 0;
};

/// How many multiprocessors, compute units or cores the device has; 0: the driver does not tell.  NVIDIA, AMD and Arm
/// have extensions for it, others none.  `have` are the device's extensions, and only they are asked.
inline uint32_t
computeUnits(const vk::PhysicalDevice& device, const std::set<std::string>& have)
{
    vk::PhysicalDeviceShaderSMBuiltinsPropertiesNV nvidia;
    vk::PhysicalDeviceShaderCoreProperties2AMD amd;
    vk::PhysicalDeviceShaderCorePropertiesAMD chip; // with units that are switched off
    CoreBuiltinsProperties arm;
    vk::PhysicalDeviceProperties2 all;
    auto ask = [&](auto& properties, const char* extension) {
        if (!have.count(extension))
            return;
        properties.pNext = all.pNext;
        all.pNext = &properties;
    };
    ask(nvidia, "VK_NV_shader_sm_builtins");
    ask(amd, "VK_AMD_shader_core_properties2");
    ask(chip, "VK_AMD_shader_core_properties");
    ask(arm, "VK_ARM_shader_core_builtins");
    device.getProperties2(&all);
    if (nvidia.shaderSMCount)
        return nvidia.shaderSMCount;
    if (amd.activeComputeUnitCount)
        return amd.activeComputeUnitCount;
    if (chip.computeUnitsPerShaderArray)
        return chip.shaderEngineCount * chip.shaderArraysPerEngineCount *
               chip.computeUnitsPerShaderArray;
    return arm.count ? arm.count : (uint32_t)std::bitset<64>(arm.mask).count();
}

inline pybind11::dict
deviceProperties(const vk::PhysicalDevice& device)
{
    namespace py = pybind11;
    vk::PhysicalDeviceSubgroupProperties subgroup;
    vk::PhysicalDeviceIDProperties id;
    vk::PhysicalDeviceFloatControlsProperties floats;
    vk::PhysicalDeviceDriverProperties driver;
    vk::PhysicalDeviceMaintenance3Properties allocations; // largest allocation; 0: not told
    vk::PhysicalDeviceMaintenance4Properties buffers;     // largest buffer; 0: not told
    vk::PhysicalDeviceProperties2 all;
    auto ask = [&](auto& properties) {
        properties.pNext = all.pNext;
        all.pNext = &properties;
    };
    ask(subgroup);
    ask(id);
    if (device.getProperties().apiVersion >= VK_API_VERSION_1_1)
        ask(allocations);
    if (device.getProperties().apiVersion >= VK_API_VERSION_1_2) {
        ask(floats);
        ask(driver);
    }
    const std::set<std::string> extensions = extensionsOf(device);
    if (extensions.count("VK_KHR_maintenance4"))
        ask(buffers);
    device.getProperties2(&all);
    const vk::PhysicalDeviceProperties& p = all.properties;
    const vk::PhysicalDeviceLimits& limits = p.limits;
    auto three = [](const auto& v) { return py::make_tuple(v[0], v[1], v[2]); };
    auto uuid = [](const auto& v) { return py::bytes((const char*)&v[0], VK_UUID_SIZE); };

    const std::vector<vk::QueueFamilyProperties> families = device.getQueueFamilyProperties();
    const std::optional<uint32_t> family = kp::computeFamily(families); // none: no Manager can be made
    const std::optional<uint32_t> transfers = kp::transferFamily(families);
    const uint32_t bits = family ? families[*family].timestampValidBits : 0;

    py::dict d;
    d["device_name"] = std::string(p.deviceName.data());
    d["device_type"] = (int)p.deviceType; // VkPhysicalDeviceType: 1 integrated, 2 discrete, 4 CPU
    d["vendor_id"] = p.vendorID;
    d["device_id"] = p.deviceID;
    d["api_version"] = p.apiVersion;
    d["driver_version"] = p.driverVersion;
    d["driver_id"] = (int)driver.driverID; // VkDriverId; 0: not told
    d["driver_name"] = std::string(driver.driverName.data());
    d["driver_info"] = std::string(driver.driverInfo.data());
    d["uuid"] = uuid(id.deviceUUID);
    d["pipeline_cache_uuid"] = uuid(p.pipelineCacheUUID);
    d["max_work_group_count"] = three(limits.maxComputeWorkGroupCount);
    d["max_work_group_size"] = three(limits.maxComputeWorkGroupSize);
    d["max_work_group_invocations"] = limits.maxComputeWorkGroupInvocations;
    d["max_shared_memory"] = limits.maxComputeSharedMemorySize;
    d["max_storage_buffer_range"] = limits.maxStorageBufferRange;
    d["max_allocation_size"] = (uint64_t)allocations.maxMemoryAllocationSize;
    d["max_buffer_size"] = (uint64_t)buffers.maxBufferSize;
    d["max_storage_buffers"] = limits.maxPerStageDescriptorStorageBuffers;
    d["max_push_constants_size"] = limits.maxPushConstantsSize;
    d["max_allocations"] = limits.maxMemoryAllocationCount;
    d["compute_units"] = computeUnits(device, extensions); // 0: not told
    d["subgroup_size"] = subgroup.subgroupSize;
    const SubgroupSizes sizes = subgroupSizes(device);
    d["required_subgroup_sizes"] = py::make_tuple(sizes.least, sizes.most); // (0, 0): none
    d["max_required_subgroups"] = sizes.perWorkgroup;                       // of a workgroup, then
    d["preserves_nan"] = (bool)floats.shaderSignedZeroInfNanPreserveFloat32; // if a shader asks for it
    d["rounds_to_nearest"] = (bool)floats.shaderRoundingModeRTEFloat32;      // likewise
    d["keeps_denormals"] = (bool)floats.shaderDenormPreserveFloat32;         // likewise
    d["queue_family"] = family ? (int)*family : -1; // that launches go to
    d["transfer_family"] = transfers ? (int)*transfers : -1; // of queue 1, if there is one
    d["queue_draws"] = family && (families[*family].queueFlags & vk::QueueFlagBits::eGraphics);
    d["timestamps_supported"] = bits != 0;
    d["timestamp_valid_bits"] = bits;
    d["timestamp_period"] = limits.timestampPeriod; // nanoseconds per tick
    return d;
}

/// [(bytes, is device-local)] per heap.
inline pybind11::list
memoryHeaps(const vk::PhysicalDevice& device)
{
    pybind11::list heaps;
    const vk::PhysicalDeviceMemoryProperties memory = device.getMemoryProperties();
    for (uint32_t i = 0; i < memory.memoryHeapCount; i++) {
        const vk::MemoryHeap& heap = memory.memoryHeaps[i];
        const bool local(heap.flags & vk::MemoryHeapFlagBits::eDeviceLocal);
        heaps.append(pybind11::make_tuple((uint64_t)heap.size, local));
    }
    return heaps;
}

/// [(budget, usage)] of this process per heap, as they are now; empty without VK_EXT_memory_budget.
inline pybind11::list
memoryBudget(const vk::PhysicalDevice& device)
{
    pybind11::list heaps;
    if (!extensionsOf(device).count("VK_EXT_memory_budget"))
        return heaps;
    vk::PhysicalDeviceMemoryBudgetPropertiesEXT budget;
    vk::PhysicalDeviceMemoryProperties2 memory;
    memory.pNext = &budget;
    device.getMemoryProperties2(&memory);
    for (uint32_t i = 0; i < memory.memoryProperties.memoryHeapCount; i++)
        heaps.append(
          pybind11::make_tuple((uint64_t)budget.heapBudget[i], (uint64_t)budget.heapUsage[i]));
    return heaps;
}

/// VkCooperativeMatrixPropertiesKHR, which is younger than the headers of Debian 12.
struct CooperativeMatrixProperties
{
    VkStructureType sType = (VkStructureType)1000506001;
    void* pNext = nullptr;
    uint32_t m, n, k, a, b, c, result;
    VkBool32 saturating;
    uint32_t scope;
};

/// [(m, n, k, type of A, of B, of C, of the result, scope)] by Vulkan's numbers; empty without the extension.
inline pybind11::list
cooperativeMatrices(const vk::Instance& instance, const vk::PhysicalDevice& device, bool enabled)
{
    using Query = VkResult(VKAPI_PTR*)(VkPhysicalDevice, uint32_t*, CooperativeMatrixProperties*);
    pybind11::list found;
    if (!enabled)
        return found;
    const auto query = (Query)VULKAN_HPP_DEFAULT_DISPATCHER.vkGetInstanceProcAddr(
      instance, "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR");
    uint32_t count = 0;
    if (!query || query(device, &count, nullptr) != VK_SUCCESS)
        return found;
    std::vector<CooperativeMatrixProperties> all(count);
    if (query(device, &count, all.data()) < VK_SUCCESS)
        return found;
    for (const CooperativeMatrixProperties& p : all)
        found.append(pybind11::make_tuple(p.m, p.n, p.k, p.a, p.b, p.c, p.result, p.scope));
    return found;
}

} // namespace ag
