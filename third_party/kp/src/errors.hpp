// Turns the VkResults that kp 0.9.0 drops into C++ exceptions.
//
// vulkan.hpp throws by itself from its "enhanced" calls; the pointer-style calls that kp uses hand
// back a VkResult instead.  extend.hpp maps the exceptions to Python: kp.OutOfMemoryError, which is a
// MemoryError, kp.DeviceLostError and kp.Error, which are RuntimeErrors.  Called from the patched kp sources.
#pragma once
#include <vulkan/vulkan.hpp>

namespace kp {

/// Throws unless `result` is VK_SUCCESS; `what` names the call that failed.
inline void
vkCheck(vk::Result result, const char* what)
{
    switch (result) {
        case vk::Result::eSuccess:
            return;
        case vk::Result::eErrorOutOfHostMemory:
            throw vk::OutOfHostMemoryError(what);
        case vk::Result::eErrorOutOfDeviceMemory:
            throw vk::OutOfDeviceMemoryError(what);
        case vk::Result::eErrorTooManyObjects:
            throw vk::TooManyObjectsError(what);
        case vk::Result::eErrorDeviceLost:
            throw vk::DeviceLostError(what);
        default:
            throw vk::SystemError(vk::make_error_code(result), what);
    }
}

} // namespace kp
