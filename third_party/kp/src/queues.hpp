// Which queue family launches go to, and which one copies that run beside them, if the device has engines of their own
// for these; and in which order the two run.  The first family with compute is usually the one that draws: the desktop
// waits while a launch runs there, and drivers set it up for drawing.  Used by the patched Manager and Sequence, and by
// properties.hpp.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>
#include <vulkan/vulkan.hpp>

namespace kp {

/// The first family that computes and does not draw, unless only those that draw have timestamps; else the first that
/// computes.
inline std::optional<uint32_t>
computeFamily(const std::vector<vk::QueueFamilyProperties>& families)
{
    std::optional<uint32_t> first;
    for (uint32_t i = 0; i < families.size(); i++) {
        const vk::QueueFamilyProperties& family = families[i];
        if (!(family.queueFlags & vk::QueueFlagBits::eCompute) || family.queueCount == 0)
            continue;
        if (!first)
            first = i;
        if (!(family.queueFlags & vk::QueueFlagBits::eGraphics) &&
            (family.timestampValidBits || !families[*first].timestampValidBits))
            return i;
    }
    return first;
}

/// The first family that copies and does nothing else, if there is one: cards have engines for that, apart from what
/// computes, draws, and encodes films.
inline std::optional<uint32_t>
transferFamily(const std::vector<vk::QueueFamilyProperties>& families)
{
    const vk::QueueFlags besides = vk::QueueFlagBits::eSparseBinding | vk::QueueFlagBits::eProtected;
    for (uint32_t i = 0; i < families.size(); i++)
        if ((families[i].queueFlags & ~besides) == vk::QueueFlagBits::eTransfer && families[i].queueCount > 0)
            return i;
    return std::nullopt;
}

/// How the queue for launches waits for the one for transfers: what is started there waits for all transfers that were
/// started before.  Not the other way round: a transfer must touch nothing that a launch on its way does.
struct Timeline
{
    vk::Semaphore semaphore; // counts submissions of transfers that have ended
    uint64_t started = 0;    // of those
    uint64_t waited = 0;     // what the other queue has been told to wait for
};

} // namespace kp
