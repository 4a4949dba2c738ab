// Optional device features: which of a fixed list the device supports, and those of them that are turned on.
//
// A shader may use 16-bit floats, addresses of buffers and the like only when the feature was enabled at
// vkCreateDevice; kp 0.9.0 enables none.  Some drivers run such shaders all the same and give wrong numbers, so the
// caller must look here before it picks a shader.  Enabled is what some kernel of ag or kp itself uses, and nothing
// else: a feature may cost speed, as checks of every access do, and the less is asked of a driver, the less goes wrong.
// Manager.features() in Python is what there is, Manager.enabled() what is turned on of it.
// Member of kp::Manager, filled by Manager::createDevice.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>
#include <vulkan/vulkan.hpp>

namespace kp {

/// VkPhysicalDeviceCooperativeMatrixFeaturesKHR, which is younger than the headers of Debian 12.
struct CooperativeMatrixFeatures
{
    VkStructureType sType = (VkStructureType)1000506000;
    void* pNext = nullptr;
    VkBool32 cooperativeMatrix = VK_FALSE;
    VkBool32 cooperativeMatrixRobustBufferAccess = VK_FALSE;
};

/// VkPhysicalDeviceShaderBfloat16FeaturesKHR, likewise.
struct Bfloat16Features
{
    VkStructureType sType = (VkStructureType)1000141000;
    void* pNext = nullptr;
    VkBool32 shaderBFloat16Type = VK_FALSE;
    VkBool32 shaderBFloat16DotProduct = VK_FALSE;
    VkBool32 shaderBFloat16CooperativeMatrix = VK_FALSE;
};

struct Features
{
    std::map<std::string, bool> there; ///< by the names Python sees
    std::set<std::string> enabled;     ///< of these
    std::set<std::string> extensions;  ///< device extensions to be enabled

    /// Asks the device; returns the pNext chain for vkCreateDevice, which lives as long as this.
    /// `have` are the device's extensions.
    void* query(const vk::PhysicalDevice& device, const std::set<std::string>& have)
    {
        // The instance asks for Vulkan 1.2: newer promotions still count as extensions.
        const uint32_t version = device.getProperties().apiVersion;
        const bool core11 = version >= VK_API_VERSION_1_1;
        const bool core12 = version >= VK_API_VERSION_1_2;

        void* chain = nullptr;
        auto ask = [&](auto& features, bool core, const char* extension) {
            if (!core && !have.count(extension))
                return false;
            features.pNext = chain;
            chain = &features;
            return true;
        };
        std::vector<VkBaseOutStructure*> used;
        auto use = [&](auto& features, bool core, const char* extension) {
            if (!ask(features, core, extension))
                return;
            if (!core)
                extensions.insert(extension);
            used.push_back((VkBaseOutStructure*)&features);
        };
        ask(mStorage16, core11, "VK_KHR_16bit_storage");
        ask(mStorage8, core12, "VK_KHR_8bit_storage");
        use(mFloat16Int8, core12, "VK_KHR_shader_float16_int8");
        ask(mSubgroupTypes, core12, "VK_KHR_shader_subgroup_extended_types");
        use(mMemoryModel, core12, "VK_KHR_vulkan_memory_model");
        if (core12) // the call that tells an address has another name before
            use(mAddress, core12, "VK_KHR_buffer_device_address");
        use(mTimelineSemaphore, core12, "VK_KHR_timeline_semaphore");
        use(mSubgroupSize, false, "VK_EXT_subgroup_size_control");
        ask(mAtomicFloat, false, "VK_EXT_shader_atomic_float");
        use(mCooperativeMatrix, false, "VK_KHR_cooperative_matrix");
        use(mBfloat16, false, "VK_KHR_shader_bfloat16");
        // A device that has this extension (MoltenVK) demands that it be enabled.
        if (have.count("VK_KHR_portability_subset"))
            extensions.insert("VK_KHR_portability_subset");

        vk::PhysicalDeviceFeatures2 found;
        found.pNext = chain;
        device.getFeatures2(&found);

        there = {
            { "int8", mFloat16Int8.shaderInt8 },
            { "int16", found.features.shaderInt16 },
            { "int64", found.features.shaderInt64 },
            { "float16", mFloat16Int8.shaderFloat16 },
            { "float64", found.features.shaderFloat64 },
            { "storage8", mStorage8.storageBuffer8BitAccess },
            { "storage16", mStorage16.storageBuffer16BitAccess },
            { "subgroup_extended_types", mSubgroupTypes.shaderSubgroupExtendedTypes },
            { "subgroup_size_control", mSubgroupSize.subgroupSizeControl },
            { "full_subgroups", mSubgroupSize.computeFullSubgroups },
            { "vulkan_memory_model", mMemoryModel.vulkanMemoryModel },
            { "device_scope", mMemoryModel.vulkanMemoryModelDeviceScope },
            { "buffer_device_address", mAddress.bufferDeviceAddress },
            { "timeline_semaphore", mTimelineSemaphore.timelineSemaphore },
            { "atomic_float32_add", mAtomicFloat.shaderBufferFloat32AtomicAdd },
            { "cooperative_matrix", mCooperativeMatrix.cooperativeMatrix },
            { "bfloat16", mBfloat16.shaderBFloat16Type },
            { "bfloat16_cooperative_matrix", mBfloat16.shaderBFloat16CooperativeMatrix },
        };

        // What is used of these stays as it was found; the rest of them, and all of Vulkan 1.0's, is off.
        mFloat16Int8.shaderInt8 = VK_FALSE;
        mMemoryModel.vulkanMemoryModelAvailabilityVisibilityChains = VK_FALSE;
        mAddress.bufferDeviceAddressCaptureReplay = VK_FALSE;
        mAddress.bufferDeviceAddressMultiDevice = VK_FALSE;
        mCooperativeMatrix.cooperativeMatrixRobustBufferAccess = VK_FALSE;
        mBfloat16.shaderBFloat16DotProduct = VK_FALSE;
        for (const char* name :
             { "float16", "subgroup_size_control", "full_subgroups", "vulkan_memory_model", "device_scope",
               "buffer_device_address", "timeline_semaphore", "cooperative_matrix", "bfloat16",
               "bfloat16_cooperative_matrix" })
            if (there.at(name))
                enabled.insert(name);
        mCore.pNext = nullptr;
        for (VkBaseOutStructure* features : used) {
            features->pNext = (VkBaseOutStructure*)mCore.pNext;
            mCore.pNext = features;
        }
        return &mCore;
    }

  private:
    VkPhysicalDeviceFeatures2 mCore{ VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2 };
    VkPhysicalDevice16BitStorageFeatures mStorage16{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_16BIT_STORAGE_FEATURES
    };
    VkPhysicalDevice8BitStorageFeatures mStorage8{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_8BIT_STORAGE_FEATURES
    };
    VkPhysicalDeviceShaderFloat16Int8Features mFloat16Int8{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_FLOAT16_INT8_FEATURES
    };
    VkPhysicalDeviceShaderSubgroupExtendedTypesFeatures mSubgroupTypes{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_SUBGROUP_EXTENDED_TYPES_FEATURES
    };
    VkPhysicalDeviceVulkanMemoryModelFeatures mMemoryModel{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_MEMORY_MODEL_FEATURES
    };
    VkPhysicalDeviceBufferDeviceAddressFeatures mAddress{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_BUFFER_DEVICE_ADDRESS_FEATURES
    };
    VkPhysicalDeviceTimelineSemaphoreFeatures mTimelineSemaphore{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_TIMELINE_SEMAPHORE_FEATURES
    };
    VkPhysicalDeviceSubgroupSizeControlFeatures mSubgroupSize{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_SIZE_CONTROL_FEATURES
    };
    VkPhysicalDeviceShaderAtomicFloatFeaturesEXT mAtomicFloat{
        VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_ATOMIC_FLOAT_FEATURES_EXT
    };
    CooperativeMatrixFeatures mCooperativeMatrix;
    Bfloat16Features mBfloat16;
};

} // namespace kp
