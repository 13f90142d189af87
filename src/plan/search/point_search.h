#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace kintsugi {

// dlib's global search (LIPO and a trust region) for the maximum of a function of integers. Several
// questions may be open at a time and may be answered in any order.
class PointSearch {
 public:
  using Point = std::vector<int>;

  // Coordinate i is in 0 … last[i], with last[i] at least 1; `known` are evaluated points.
  PointSearch(const std::vector<int>& last, const std::vector<std::pair<Point, double>>& known);
  ~PointSearch();
  PointSearch(const PointSearch&) = delete;
  PointSearch& operator=(const PointSearch&) = delete;

  struct Question {
    std::uint64_t id;
    Point point;
  };
  Question ask();
  void answer(std::uint64_t id, double value);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Without dlib the constructor of PointSearch throws a UserError.
bool built_with_dlib();

}  // namespace kintsugi
