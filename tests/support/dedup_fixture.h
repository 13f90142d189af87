#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/file.h"
#include "data/corpora/record_reader.h"
#include "data/dedup/dedup_job.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {

// A deduplication of JSONL files in a temporary directory.
class DedupFixture : public testing::Test {
 protected:
  void SetUp() override {
    options_.output = directory_ / "out";
    options_.threads = 2;
  }
  void write_input(const std::string& name, const std::vector<std::string>& texts) {
    std::string lines;
    for (const std::string& text : texts)
      lines += nlohmann::json({{"id", name}, {"text", text}}).dump() + "\n";
    options_.inputs.emplace_back(directory_.write(name, lines));
  }
  DedupReport run() {
    return deduplicate(options_, {[](const std::string&, std::int64_t, const std::string&) {},
                                  [](std::int64_t) {}, [] { return false; }});
  }
  // All stages one after the other, each as an array of jobs.
  void run_arrays(std::size_t jobs) {
    options_.jobs = jobs;
    for (const DedupStageUnits& one : dedup_stages(options_)) {
      options_.stage = one.stage;
      for (options_.job = 0; options_.job < jobs; ++options_.job) run();
    }
    options_.stage = DedupStage::All;
    options_.job = 0;
    options_.jobs = 1;
  }
  std::string mistake() {
    return user_error_of([&] { run(); });
  }
  // The files of the output, without descriptions.
  std::map<std::string, std::string> contents() {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(options_.output))
      if (entry.is_regular_file() && entry.path().extension() != ".json")
        files[std::filesystem::relative(entry.path(), options_.output)] =
            read_text_file(entry.path());
    return files;
  }
  std::vector<nlohmann::json> kept() {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(options_.output / "kept"))
      if (entry.path().extension() != ".json") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::vector<nlohmann::json> documents;
    for (const std::filesystem::path& file : files) {
      RecordReader reader(file);
      for (Record record; reader.next(record);)
        documents.push_back(nlohmann::json::parse(record.bytes));
    }
    return documents;
  }
  std::vector<std::string> kept_texts() {
    std::vector<std::string> texts;
    for (const nlohmann::json& one : kept()) texts.push_back(one["text"]);
    return texts;
  }

  TemporaryDirectory directory_;
  DedupOptions options_;
};

}  // namespace kintsugi
