// Manager.algorithms() for Python: pipelines that several threads make at once, as a driver takes 1 to 500 ms for one
// and a captured step may need dozens.  The threads touch their own Algorithms and the device only, which allows that:
// a VkPipelineCache is guarded by the driver.  They end before the call does, and never take the GIL, which the caller
// releases meanwhile, looking for signals.  What cannot be made is left to the caller, who makes it alone and hears why.
#pragma once
#include "algorithm.hpp"
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <tuple>

namespace ag {

class Together
{
  public:
    using Words = std::vector<uint32_t>;

    struct One
    {
        std::shared_ptr<kp::Algorithm> algorithm;
        std::vector<std::shared_ptr<kp::Tensor>> tensors;
        Words spirv;
        kp::Workgroup workgroup;
        Words spec, push;
        bool made = false;
    };

    std::vector<One> all;

    explicit Together(kp::Manager& manager)
      : mManager(manager)
    {
    }

    ~Together()
    {
        mStop = true;
        const pybind11::gil_scoped_release released;
        for (std::thread& thread : mThreads)
            thread.join();
    }

    /// Needs the GIL.  Throws what a signal's handler has raised; then the pipelines in work are finished, and no more.
    void make(unsigned threads)
    {
        start(threads);
        while (!ended())
            if (PyErr_CheckSignals() != 0)
                throw pybind11::error_already_set();
    }

  private:
    void start(unsigned threads)
    {
        mThreads.reserve(threads);
        while (mThreads.size() < threads && mThreads.size() < all.size()) {
            const std::lock_guard<std::mutex> lock(mMutex);
            mManager.users()++;
            mWorking++;
            try {
                mThreads.emplace_back([this] { work(); });
            } catch (...) { // no more threads: those that there are do the rest
                mManager.users()--;
                mWorking--;
                return;
            }
        }
    }

    void work()
    {
        for (size_t i; !mStop && (i = mNext++) < all.size();) {
            One& one = all[i];
            try {
                one.algorithm->rebuild(one.tensors, one.spirv, one.workgroup, one.spec, one.push);
                one.made = true;
            } catch (...) {
                one.algorithm->destroy();
            }
        }
        mManager.users()--;
        const std::lock_guard<std::mutex> lock(mMutex);
        mWorking--;
        mDone.notify_all();
    }

    bool ended()
    {
        const pybind11::gil_scoped_release released;
        std::unique_lock<std::mutex> lock(mMutex);
        return mDone.wait_for(lock, std::chrono::milliseconds(50), [this] { return mWorking == 0; });
    }

    kp::Manager& mManager;
    std::vector<std::thread> mThreads;
    std::atomic<size_t> mNext{ 0 };
    std::atomic<bool> mStop{ false };
    std::mutex mMutex;
    std::condition_variable mDone;
    int mWorking = 0;
};

using Constants = pybind11::array_t<uint32_t, pybind11::array::c_style>;
using Wanted = std::tuple<std::vector<std::shared_ptr<kp::Tensor>>,
                          pybind11::bytes,
                          kp::Workgroup,
                          Constants,
                          Constants,
                          uint32_t>;

inline std::vector<std::shared_ptr<kp::Algorithm>>
algorithms(kp::Manager& manager, const std::vector<Wanted>& wanted, unsigned threads)
{
    std::vector<std::shared_ptr<kp::Algorithm>> found;
    Together together(manager);
    for (const auto& [tensors, spirv, workgroup, spec, push, subgroupSize] : wanted) {
        requireSubgroups(manager, subgroupSize);
        together.all.push_back({ manager.unmade(subgroupSize),
                                 tensors,
                                 spirvWords(tensors, spirv),
                                 workgroup,
                                 Together::Words(spec.data(), spec.data() + spec.size()),
                                 Together::Words(push.data(), push.data() + push.size()) });
    }
    together.make(threads);
    for (const Together::One& one : together.all) {
        manager.made(one.made);
        found.push_back(one.made && one.algorithm->isInit() ? one.algorithm : nullptr);
    }
    return found;
}

} // namespace ag
