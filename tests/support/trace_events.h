#pragma once

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kintsugi {

// Parses a trace file as a viewer does.
struct TraceEvents {
  struct Event {
    std::string name, category;
    double begin, end;  // microseconds
    nlohmann::json arguments;
  };
  std::map<int, std::string> processes;
  std::map<std::pair<int, std::string>, std::vector<Event>> lanes;  // by process and thread's name

  explicit TraceEvents(const nlohmann::json& file) {
    std::map<std::pair<int, int>, std::string> threads;
    for (const auto& event : file.at("traceEvents")) {
      if (event.at("ph") != "M") continue;
      const std::string text =
          event.at("args").contains("name") ? event.at("args").at("name").get<std::string>() : "";
      if (event.at("name") == "process_name") processes[event.at("pid")] = text;
      if (event.at("name") == "thread_name") threads[{event.at("pid"), event.at("tid")}] = text;
    }
    for (const auto& event : file.at("traceEvents")) {
      if (event.at("ph") == "M") continue;
      EXPECT_EQ(event.at("ph"), "X");
      const double begin = event.at("ts"), duration = event.at("dur");
      EXPECT_GE(begin, 0);
      EXPECT_GE(duration, 0);
      lanes[{event.at("pid"), threads.at({event.at("pid"), event.at("tid")})}].push_back(
          {event.at("name"), event.at("cat"), begin, begin + duration,
           event.value("args", nlohmann::json())});
    }
  }

  // Events of a thread must be sorted by begin, and nested or disjoint.
  void expect_nested() const {
    constexpr double kRounding = 1e-6;
    for (const auto& [lane, events] : lanes) {
      std::vector<double> open;
      double last = 0;
      for (const Event& event : events) {
        EXPECT_GE(event.begin, last) << lane.second;
        last = event.begin;
        while (!open.empty() && open.back() <= event.begin + kRounding) open.pop_back();
        if (!open.empty()) {
          EXPECT_LE(event.end, open.back() + kRounding) << lane.second << " " << event.name;
        }
        open.push_back(event.end);
      }
    }
  }

  std::multiset<std::string> names(int process, const std::string& lane) const {
    std::multiset<std::string> result;
    const auto found = lanes.find({process, lane});
    if (found != lanes.end())
      for (const Event& event : found->second) result.insert(event.name);
    return result;
  }
  std::set<std::string> lanes_of(int process) const {
    std::set<std::string> result;
    for (const auto& [lane, events] : lanes)
      if (lane.first == process) result.insert(lane.second);
    return result;
  }
};

}  // namespace kintsugi
