// Which memory of a device the host sees, too: all of it where both share it (integrated chips, software), or where a
// card shows all of its own over the bus (resizable BAR).  Used by the patched Tensor for its storage.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
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

} // namespace kp
