// Which memory a device's storage lies in.  The host sees it, too, where both share it (integrated chips, software), or
// where a card shows all of its own over the bus (resizable BAR).  Integrated chips go on in the host's memory where
// the part that is set aside for them is full; cards never do, as every access would cross the bus.  Used by the
// patched Tensor for its storage.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>
#include <vulkan/vulkan.hpp>

namespace kp {

/// The first of these types (a bit each) that is the device's own, and that the host sees without having to flush.  Its
/// heap must be the largest of the device's own: a card that shows a window of 256 MiB keeps that for its driver.
inline std::optional<uint32_t>
visibleType(const vk::PhysicalDeviceMemoryProperties& memory, uint32_t types)
{
    using Flag = vk::MemoryPropertyFlagBits;
    const vk::MemoryPropertyFlags needed =
      Flag::eDeviceLocal | Flag::eHostVisible | Flag::eHostCoherent;
    vk::DeviceSize largest = 0;
    for (uint32_t i = 0; i < memory.memoryHeapCount; i++)
        if (memory.memoryHeaps[i].flags & vk::MemoryHeapFlagBits::eDeviceLocal)
            largest = std::max(largest, memory.memoryHeaps[i].size);
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++) {
        const vk::MemoryType& type = memory.memoryTypes[i];
        if ((types & (1u << i)) && (type.propertyFlags & needed) == needed &&
            !(type.propertyFlags & ~(needed | Flag::eHostCached)) &&
            memory.memoryHeaps[type.heapIndex].size >= largest)
            return i;
    }
    return std::nullopt;
}

/// Whether the host sees memory of a type without having to flush.
inline bool
seen(const vk::MemoryType& type)
{
    using Flag = vk::MemoryPropertyFlagBits;
    const vk::MemoryPropertyFlags needed = Flag::eHostVisible | Flag::eHostCoherent;
    return (type.propertyFlags & needed) == needed;
}

/// The types of these (a bit each) that storage may have, in the order in which they are to be tried: the one that the
/// host sees, too, and the first of the device's own.  An integrated chip has the machine's memory, of which some
/// drivers (AMD's) set aside half a GiB as its own: there one type of every other heap follows.
inline std::vector<uint32_t>
storageTypes(const vk::PhysicalDevice& device, uint32_t types)
{
    using Flag = vk::MemoryPropertyFlagBits;
    const vk::PhysicalDeviceMemoryProperties memory = device.getMemoryProperties();
    std::vector<uint32_t> found;
    uint32_t heaps = 0; // a bit each
    auto take = [&](uint32_t i) {
        found.push_back(i);
        heaps |= 1u << memory.memoryTypes[i].heapIndex;
    };
    const std::optional<uint32_t> both = visibleType(memory, types);
    if (both)
        take(*both);
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++)
        if ((types & (1u << i)) && (memory.memoryTypes[i].propertyFlags & Flag::eDeviceLocal)) {
            if (both != i)
                take(i);
            break;
        }
    if (device.getProperties().deviceType != vk::PhysicalDeviceType::eIntegratedGpu)
        return found;
    const vk::MemoryPropertyFlags plain =
      Flag::eDeviceLocal | Flag::eHostVisible | Flag::eHostCoherent | Flag::eHostCached;
    for (uint32_t i = 0; i < memory.memoryTypeCount; i++) {
        const vk::MemoryType& type = memory.memoryTypes[i];
        if ((types & (1u << i)) && !(heaps & (1u << type.heapIndex)) && !(type.propertyFlags & ~plain) &&
            ((type.propertyFlags & Flag::eDeviceLocal) || seen(type)))
            take(i);
    }
    return found;
}

/// The same types, of heaps first in which the budget of this process has room for so many bytes, if the driver tells:
/// where it has none, some move out what others use instead of refusing.  Cards have one heap for storage.
inline std::vector<uint32_t>
roomiest(const vk::PhysicalDevice& device, std::vector<uint32_t> types, vk::DeviceSize bytes)
{
    const std::vector<vk::ExtensionProperties> have = device.enumerateDeviceExtensionProperties();
    const bool told = std::any_of(have.begin(), have.end(), [](const vk::ExtensionProperties& extension) {
        return !std::strcmp(extension.extensionName.data(), "VK_EXT_memory_budget");
    });
    if (types.size() < 2 || !told || device.getProperties().deviceType != vk::PhysicalDeviceType::eIntegratedGpu)
        return types;
    vk::PhysicalDeviceMemoryBudgetPropertiesEXT budget;
    vk::PhysicalDeviceMemoryProperties2 memory;
    memory.pNext = &budget;
    device.getMemoryProperties2(&memory);
    std::stable_partition(types.begin(), types.end(), [&](uint32_t i) {
        const uint32_t heap = memory.memoryProperties.memoryTypes[i].heapIndex;
        return budget.heapUsage[heap] + bytes <= budget.heapBudget[heap];
    });
    return types;
}

/// The numbers of the heaps that storage may lie in, each once.
inline std::vector<uint32_t>
storageHeaps(const vk::PhysicalDevice& device)
{
    const vk::PhysicalDeviceMemoryProperties memory = device.getMemoryProperties();
    std::vector<uint32_t> heaps;
    for (const uint32_t type : storageTypes(device, UINT32_MAX)) {
        const uint32_t heap = memory.memoryTypes[type].heapIndex;
        if (std::find(heaps.begin(), heaps.end(), heap) == heaps.end())
            heaps.push_back(heap);
    }
    return heaps;
}

/// Whether the host may see some of the memory that storage lies in.
inline bool
storageSeen(const vk::PhysicalDevice& device)
{
    const vk::PhysicalDeviceMemoryProperties memory = device.getMemoryProperties();
    const std::vector<uint32_t> types = storageTypes(device, UINT32_MAX);
    return std::any_of(types.begin(), types.end(), [&](uint32_t i) { return seen(memory.memoryTypes[i]); });
}

} // namespace kp
