// Three operations that kp 0.9.0 lacks: a barrier, a dispatch with its own push constants, workgroup
// and barrier, and a copy of byte regions.  They use kp's interface only and are recorded into a
// kp::Sequence like kp's own; extend.hpp binds them.
#pragma once
#include <array>
#include <kompute/Kompute.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ag {

/// All that shaders and copies wrote before is visible to shaders and copies after, and to the host,
/// which may overwrite it, after the submission's fence if `host`.  Not to copies, nor what they wrote, without `copies`: some
/// drivers make these as drawings, and empty the caches of drawing for them.
inline void
recordBarrier(const vk::CommandBuffer& commands, bool host, bool copies = true)
{
    using Stage = vk::PipelineStageFlagBits;
    using Access = vk::AccessFlagBits;
    vk::PipelineStageFlags device = Stage::eComputeShader;
    vk::AccessFlags writes = Access::eShaderWrite;
    vk::AccessFlags reads = Access::eShaderRead;
    if (copies) {
        device |= Stage::eTransfer;
        writes |= Access::eTransferWrite;
        reads |= Access::eTransferRead;
    }
    vk::PipelineStageFlags after = device;
    vk::AccessFlags uses = writes | reads;
    if (host) {
        after |= Stage::eHost;
        uses |= Access::eHostRead | Access::eHostWrite; // the host may write where the device has
    }
    commands.pipelineBarrier(
      device, after, vk::DependencyFlags(), vk::MemoryBarrier(writes, uses), nullptr, nullptr);
}

/// Base of the operations below: nothing happens before or after the submission.
class Op : public kp::OpBase
{
  public:
    void preEval(const vk::CommandBuffer&) override {}
    void postEval(const vk::CommandBuffer&) override {}
};

class OpBarrier : public Op
{
  public:
    explicit OpBarrier(bool host)
      : mHost(host)
    {
    }

    void record(const vk::CommandBuffer& commands) override { recordBarrier(commands, mHost); }

  private:
    bool mHost;
};

/// One launch of an Algorithm, or the part of one that begins at workgroup `first`.  The push constants
/// must have the size the Algorithm was made for; without a workgroup the Algorithm's own is used.
class OpDispatch : public Op
{
  public:
    OpDispatch(std::shared_ptr<kp::Algorithm> algorithm,
               std::string push,
               std::optional<kp::Workgroup> workgroup,
               bool barrier,
               kp::Workgroup first = { 0, 0, 0 },
               bool copies = true)
      : mAlgorithm(std::move(algorithm))
      , mPush(std::move(push))
      , mWorkgroup(workgroup ? *workgroup : mAlgorithm->getWorkgroup())
      , mFirst(first)
      , mBarrier(barrier)
      , mCopies(copies)
    {
        if (mPush.size() != mAlgorithm->pushConstantsBytes())
            throw std::runtime_error("OpDispatch: " + std::to_string(mPush.size()) +
                                     " bytes of push constants given, the algorithm takes " +
                                     std::to_string(mAlgorithm->pushConstantsBytes()));
        for (uint32_t groups : mWorkgroup)
            if (groups == 0)
                throw std::runtime_error("OpDispatch: a workgroup count is 0");
    }

    void record(const vk::CommandBuffer& commands) override
    {
        if (!mAlgorithm->isInit())
            throw std::runtime_error("OpDispatch: the algorithm has no pipeline");
        if (mBarrier)
            recordBarrier(commands, false, mCopies);
        mAlgorithm->recordLaunch(commands, mPush, mWorkgroup, mFirst);
    }

  private:
    std::shared_ptr<kp::Algorithm> mAlgorithm;
    std::string mPush;
    kp::Workgroup mWorkgroup, mFirst;
    bool mBarrier, mCopies;
};

/// Copies byte regions from one tensor's buffer to another's.
class OpCopy : public Op
{
  public:
    using Region = std::array<uint64_t, 3>; ///< source offset, destination offset, size

    OpCopy(std::shared_ptr<kp::Tensor> source,
           std::shared_ptr<kp::Tensor> destination,
           const std::vector<Region>& regions,
           bool barrier)
      : mSource(std::move(source))
      , mDestination(std::move(destination))
      , mBarrier(barrier)
    {
        for (const auto& [from, to, size] : regions) {
            if (size == 0 || !inside(from, size, mSource) || !inside(to, size, mDestination))
                throw std::out_of_range("OpCopy: region (" + std::to_string(from) + ", " +
                                        std::to_string(to) + ", " + std::to_string(size) +
                                        ") does not fit tensors of " +
                                        std::to_string(mSource->memorySize()) + " and " +
                                        std::to_string(mDestination->memorySize()) + " bytes");
            mRegions.emplace_back(from, to, size);
        }
        if (mRegions.empty())
            throw std::out_of_range("OpCopy: no region given");
    }

    void record(const vk::CommandBuffer& commands) override
    {
        if (!mSource->isInit() || !mDestination->isInit())
            throw std::runtime_error("OpCopy: a tensor was destroyed");
        if (mBarrier)
            recordBarrier(commands, false);
        commands.copyBuffer(mSource->constructDescriptorBufferInfo().buffer,
                            mDestination->constructDescriptorBufferInfo().buffer,
                            mRegions);
    }

  private:
    static bool inside(uint64_t offset, uint64_t size, const std::shared_ptr<kp::Tensor>& tensor)
    {
        const uint64_t end = tensor->memorySize();
        return offset <= end && size <= end - offset;
    }

    std::shared_ptr<kp::Tensor> mSource, mDestination;
    std::vector<vk::BufferCopy> mRegions;
    bool mBarrier;
};

} // namespace ag
