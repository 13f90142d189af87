#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "http/http_handler.h"

namespace kintsugi {

// A directory of documents. Each function reads its files and throws UserError if they are damaged;
// the texts that they return are JSON.
struct ExploredSource {
  std::string name = {};
  std::function<std::string()> overview = {};
  std::function<std::string(std::uint64_t seed)> sample = {};  // random documents
};

// The page of `kintsugi data explore` and what it asks for (docs/curation.md). Only reads. A client
// names directories by their numbers.
class ExploreService : public HttpHandler {
 public:
  ExploreService(std::vector<ExploredSource> sources, const std::string& token);

  HttpReply handle(const HttpRequest& request, std::function<bool()> gone) override;

 private:
  using Clock = std::chrono::steady_clock;

  HttpReply route(const HttpRequest& request);
  HttpReply overview(std::size_t id);

  std::vector<ExploredSource> sources_;
  // An overview may take hundreds of megabytes and seconds: one at a time, and not again at once.
  struct Overview {
    Clock::time_point made = {};
    std::string text = {};
  };
  std::mutex mutex_;  // guards overviews_, and while files are read
  std::vector<Overview> overviews_;
};

// What the page reads instead of asking a server, for html_report(): the replies, with samples for
// the seeds from 1 on. A directory that cannot be read is a UserError.
std::string explore_report_data(const std::vector<ExploredSource>& sources, double generated_s,
                                std::uint64_t samples);

}  // namespace kintsugi
