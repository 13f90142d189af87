#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/inference_engine.h"

namespace kintsugi {

// Runs an engine in a thread of its own, for requests from many threads. Listeners are called in
// that thread, so they must return quickly.
class EngineThread {
 public:
  explicit EngineThread(InferenceEngine& engine);
  ~EngineThread();  // cancels what is left
  EngineThread(const EngineThread&) = delete;
  EngineThread& operator=(const EngineThread&) = delete;

  // UserError if the model cannot compute the request.
  InferenceEngine::Id submit(InferenceRequest request, InferenceListener listener);
  // on_end is still called, soon.
  void cancel(InferenceEngine::Id id);
  InferenceCounters counters() const;  // after the last step; `waiting` with new requests
  void wait_until_idle();
  // What ended the engine, if something did: all requests have ended as Failed, and new ones do.
  std::optional<std::string> failure() const;

 private:
  struct Submission {
    InferenceEngine::Id id;
    InferenceRequest request;
    InferenceListener listener;
  };
  void run();
  void run_engine();
  void refuse_all();
  void submit_to_engine(Submission submission);
  void cancel_in_engine(InferenceEngine::Id id);

  InferenceEngine& engine_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Submission> submitted_;
  std::vector<InferenceEngine::Id> cancelled_;
  InferenceCounters counters_;
  InferenceEngine::Id next_id_ = 1;
  bool idle_ = true, ending_ = false;
  std::optional<std::string> failure_;
  std::map<InferenceEngine::Id, InferenceEngine::Id> in_engine_;  // used by the thread only
  std::thread thread_;
};

}  // namespace kintsugi
