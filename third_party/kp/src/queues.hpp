// Which queue family launches go to.  The first with compute is usually the one that draws: the desktop waits while a
// launch runs there, and drivers set it up for drawing.  Used by the patched Manager and by properties.hpp.
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

} // namespace kp
