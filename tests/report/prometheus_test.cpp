#include "report/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "support/prometheus_parser.h"

namespace kintsugi {
namespace {

TEST(Prometheus, TextOfCountersAndGauges) {
  EXPECT_EQ(prometheus_text({{"a_total", "Things done.", {{{}, 12}}},
                             {"b_seconds", "Time.", {{{{"z", "2"}, {"c", "1"}}, 0.25}, {{}, -1}}},
                             {"left_out", "No samples.", {}}}),
            "# HELP a_total Things done.\n# TYPE a_total counter\na_total 12\n"
            "# HELP b_seconds Time.\n# TYPE b_seconds gauge\n"
            "b_seconds{c=\"1\",z=\"2\"} 0.25\nb_seconds -1\n");
}

TEST(Prometheus, NumbersThatAreNotFiniteOrLarge) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::string text = prometheus_text({{"a",
                                             "A.",
                                             {{{{"k", "nan"}}, NAN},
                                              {{{"k", "inf"}}, kInfinity},
                                              {{{"k", "low"}}, -kInfinity},
                                              {{{"k", "large"}}, 15e12},
                                              {{{"k", "exact"}}, 0.1 + 0.2}}}});
  const PrometheusRead read = PrometheusParser::parse(text);
  EXPECT_TRUE(std::isnan(read.at("a", "k=nan")));
  EXPECT_EQ(read.at("a", "k=inf"), kInfinity);
  EXPECT_EQ(read.at("a", "k=low"), -kInfinity);
  EXPECT_EQ(read.at("a", "k=large"), 15e12);
  EXPECT_EQ(read.at("a", "k=exact"), 0.1 + 0.2) << "no digit is lost";
}

TEST(Prometheus, HostileLabelsAreEscaped) {
  const std::string label = "a\"b\\c\nd{e}=,\x1b\xff";
  const std::string text = prometheus_text({{"m", "Two\nlines \\ \"x\".", {{{{"k", label}}, 1}}}});
  EXPECT_EQ(text,
            "# HELP m Two\\nlines \\\\ \"x\".\n# TYPE m gauge\n"
            "m{k=\"a\\\"b\\\\c\\nd{e}=,\\\\x1b\\\\xff\"} 1\n");
  EXPECT_EQ(PrometheusParser::parse(text).at("m", "k=a\"b\\c\nd{e}=,\\x1b\\xff"), 1);
}

// So that the tests that use it can fail.
TEST(Prometheus, TheParserOfTheseTestsIsStrict) {
  const std::string head = "# HELP m M.\n# TYPE m gauge\n";
  EXPECT_NO_THROW(PrometheusParser::parse(head + "m 1\n"));
  for (const char* bad : {"m 1", "m 1 1700000000\n", "m nan\n", "m inf\n", "m{a=\"\\x\"} 1\n",
                          "m{b=\"1\",a=\"2\"} 1\n", "m 1\nm 2\n", "n 1\n", "m one\n", "\n",
                          "# HELP m Again.\n", "# TYPE m gauge\n", "m{a=\"1\" 1\n"})
    EXPECT_THROW(PrometheusParser::parse(head + bad), std::runtime_error) << bad;
  EXPECT_THROW(PrometheusParser::parse("# HELP m M.\n# TYPE m counter\nm 1\n"), std::runtime_error);
}

}  // namespace
}  // namespace kintsugi
