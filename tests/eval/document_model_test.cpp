#include "eval/run/document_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/cpu/cpu_backend.h"
#include "core/error.h"
#include "support/classifier_fixture.h"

namespace kintsugi {
namespace {

using Documents = std::vector<DocumentModel::Document>;

std::vector<double> computed_by(const std::filesystem::path& directory, DocumentOutput output,
                                const Documents& documents, std::int64_t batch_tokens = 0,
                                std::int64_t max_length = 0) {
  const auto backend = make_cpu_backend(1);
  DocumentModel model(*backend, directory,
                      {.output = output, .max_length = max_length, .batch_tokens = batch_tokens});
  std::size_t done = 0;
  const std::vector<double> numbers =
      model.compute(documents, [&](std::size_t count) { done += count; });
  EXPECT_EQ(done, documents.size());
  EXPECT_EQ(numbers.size(), documents.size() * static_cast<std::size_t>(model.width()));
  return numbers;
}

template <class T>
void expect_near(const std::vector<double>& actual, const std::vector<T>& expected,
                 double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    EXPECT_NEAR(actual[i], static_cast<double>(expected[i]), tolerance) << i;
}

TEST(DocumentModelTest, GivesTheHiddenStatesAndLogitsOfTransformers) {
  for (const char* family : {"llama", "gpt2"}) {
    SCOPED_TRACE(family);
    const ClassifierFixture fixture(family);
    const auto documents = fixture.documents();
    // Three sizes of batches: a document each, two, and all of them.
    for (const std::int64_t tokens : {20, 45, 200}) {
      const auto result = [&](DocumentOutput output) {
        return computed_by(fixture.directory(), output, documents, tokens, 20);
      };
      expect_near(result(DocumentOutput::Logits), fixture.floats("logits"), 2e-5);
      expect_near(result(DocumentOutput::Mean), fixture.floats("hidden_mean"), 2e-5);
      expect_near(result(DocumentOutput::Last), fixture.floats("hidden_last"), 2e-5);
    }
    // The language model has the same hidden states.
    expect_near(computed_by(fixture.base(), DocumentOutput::Last, documents),
                fixture.floats("hidden_last"), 2e-5);
  }
}

// No document depends on the others, in families with and without document masks.
TEST(DocumentModelTest, ComputesEachDocumentAlone) {
  const Documents documents = {{5, 9, 3}, {7}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {4, 4}, {60, 2, 30}};
  for (const char* family : {"retnet", "bloom", "olmo3", "qwen3"}) {
    SCOPED_TRACE(family);
    const auto directory = std::filesystem::path(test_data_directory()) / family;
    for (const DocumentOutput output : {DocumentOutput::Mean, DocumentOutput::Last}) {
      std::vector<double> alone;
      for (const auto& document : documents)
        for (const double x : computed_by(directory, output, {document}, 12, 12))
          alone.push_back(x);
      expect_near(computed_by(directory, output, documents, 30, 12), alone, 2e-5);
    }
  }
}

TEST(DocumentModelTest, ALanguageModelHasNoLabels) {
  const auto backend = make_cpu_backend(1);
  try {
    DocumentModel model(*backend, std::filesystem::path(test_data_directory()) / "llama",
                        {.output = DocumentOutput::Logits});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("is a language model, not a classifier"));
  }
}

}  // namespace
}  // namespace kintsugi
