#include <dlib/global_optimization/global_function_search.h>

#include <map>

#include "core/error.h"
#include "plan/search/point_search.h"

namespace kintsugi {
namespace {

using Vector = dlib::matrix<double, 0, 1>;

Vector vector_of(const PointSearch::Point& point) {
  Vector vector(static_cast<long>(point.size()));
  for (std::size_t i = 0; i < point.size(); ++i) vector(static_cast<long>(i)) = point[i];
  return vector;
}

dlib::function_spec spec_of(const std::vector<int>& last) {
  return {vector_of(PointSearch::Point(last.size(), 0)), vector_of(last),
          std::vector<bool>(last.size(), true)};
}

// Two trials of one layout differ by about one percent.
constexpr double kNoise = 0.01;

}  // namespace

struct PointSearch::State {
  dlib::global_function_search search;
  std::map<std::uint64_t, dlib::function_evaluation_request> open;
  std::uint64_t questions = 0;
};

bool built_with_dlib() { return true; }

PointSearch::PointSearch(const std::vector<int>& last,
                         const std::vector<std::pair<Point, double>>& known) {
  std::vector<dlib::function_evaluation> evaluations;
  for (const auto& [point, value] : known) evaluations.emplace_back(vector_of(point), value);
  state_ = std::make_unique<State>(
      State{.search = {{spec_of(last)}, {evaluations}, kNoise}, .open = {}});
}
PointSearch::~PointSearch() = default;

PointSearch::Question PointSearch::ask() {
  dlib::function_evaluation_request request = state_->search.get_next_x();
  Question question{state_->questions++, {}};
  for (const double x : request.x()) question.point.push_back(static_cast<int>(std::lround(x)));
  state_->open.emplace(question.id, std::move(request));
  return question;
}

void PointSearch::answer(std::uint64_t id, double value) {
  const auto found = state_->open.find(id);
  KINTSUGI_CHECK(found != state_->open.end(), "no question {} is open", id);
  found->second.set(value);
  state_->open.erase(found);
}

}  // namespace kintsugi
