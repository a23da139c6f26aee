#include <gmock/gmock.h>

#include "tessera/report/chart.h"
#include "tessera/report/markup.h"
#include "tessera/report/page.h"
#include "tessera/report/sections.h"

namespace tessera::report {
namespace {

using testing::HasSubstr;
using testing::Not;

RunDocuments example(const std::string& name = "runs/a") {
  RunDocuments run{.name = name};
  run.run = Json::parse(R"({"model": "resnet_v1", "state": "finished", "command": ["tessera", "train", "--lr", "<1>"],
    "plan": {"image": [3, 64, 96], "global_batch": 8, "micros": 2, "replicas": 1, "directions": 1, "ranks": 5,
             "schedule": "1f1b", "stages": [{"grid": [2, 2], "ranks": [0, 1, 2, 3]}, {"grid": [1, 1], "ranks": [4]}]},
    "cells": [{"name": "stem", "stage": 0, "output": [16, 64, 96], "gflop": 3},
              {"name": "head", "stage": 1, "output": [3, 1, 1], "gflop": 1}],
    "images_per_second": {"median": 12.5}, "peak_bytes": [1048576, 2097152], "predicted_bytes": [1000000, 2000000],
    "rank_seconds": [0.5, 0.4], "rank_parts": [{"waiting": 0.1, "data": 0}, {"waiting": 0.05, "data": 0}]})");
  for (int step = 1; step <= 4; ++step)
    run.metrics.push_back({{"step", step},
                           {"time", 100.0 + step},
                           {"train/loss", 2.0 / step},
                           {"speed/step_seconds", 1.0},
                           {"speed/images_per_second", 8}});
  run.metrics.push_back({{"step", 4}, {"time", 104.5}, {"val/accuracy", 0.75}});
  run.evaluation =
      Json::parse(R"({"confusion": [[3, 1], [0, 4]], "recall": [0.75, 1.0], "class_names": ["a<b", "tumour"]})");
  run.timeline = Json::parse(R"({"step": 4, "seconds": 0.5,
    "ranks": [[{"name": "F0", "kind": "forward", "stage": 0, "begin": 0, "end": 0.25}]],
    "parts": [[{"part": "waiting", "begin": 0.1, "end": 0.2}]],
    "simulated": {"seconds": 10, "ranks": [[{"name": "F0", "kind": "forward", "stage": 0, "begin": 0, "end": 5}]]}})");
  run.samples = Json::parse(R"({"samples": [{"name": "v/1.png", "picture": "data:image/jpeg;base64,AAAA",
    "label": "tumour", "predicted": "a<b", "probability": 0.9}]})");
  return run;
}

TEST(Page, HasEveryPartOfARunAndNeedsNoNetwork) {
  const std::string html = page({example()});
  for (const char* part :
       {"Loss", "Images per second", "Where a step&#39;s time goes", "Memory", "Tiles of the first stage",
        "The network in stages", "The timeline of a step", "Confusion matrix", "Recall of each class", "Some images"})
    EXPECT_THAT(html, HasSubstr(part)) << part;
  for (const char* outside : {"http://", "https://", "src='/", "@import", "url("})
    EXPECT_THAT(html, Not(HasSubstr(outside)));
}

TEST(Page, TextOfAUserIsNeverMarkup) {
  const std::string html = page({example("<script>alert(1)</script>")});
  EXPECT_THAT(html, Not(HasSubstr("<script>alert")));
  EXPECT_THAT(html, HasSubstr("a&lt;b"));
  EXPECT_THAT(html, HasSubstr("--lr &lt;1&gt;"));
}

TEST(Page, OfDocumentsThatAreEmptyOrOddIsStillAPage) {
  RunDocuments odd{.name = "x"};
  EXPECT_THAT(page({odd}), HasSubstr("</html>"));
  odd.run = Json::parse(R"({"plan": 3, "rank_parts": [1], "rank_seconds": ["a"], "cells": [{}], "steps": [null],
                            "peak_bytes": [null], "evaluations": [{"confusion": [[null], 3]}]})");
  odd.metrics = {Json(3), Json::parse(R"({"step": 1, "time": 2, "train/loss": null})")};
  odd.timeline = Json::parse(R"({"ranks": [[{}], 4], "seconds": 0})");
  odd.samples = Json::parse(R"({"samples": [{}, 7]})");
  EXPECT_THAT(page({odd, odd}), HasSubstr("</html>"));
}

TEST(Page, OfAHundredThousandStepsStaysSmall) {
  RunDocuments run = example();
  for (int step = 5; step < 100'000; ++step)
    run.metrics.push_back(
        {{"step", step}, {"time", 100.0 + step}, {"train/loss", 1.0 / step}, {"speed/step_seconds", 1}});
  EXPECT_LT(page({run, run, run}).size(), 2'000'000U);
}

TEST(Summary, HasOneRowPerRunWithItsFigures) {
  const std::string html = summary({example("one"), example("two")});
  for (const char* value : {">one<", ">two<", "64x96", "4 tiles, 2 stages, 2 micros, 1f1b; 5 ranks", "<td>0.5</td>",
                            "75.0 %", "12.5", "2.00 MiB", "finished"})
    EXPECT_THAT(html, HasSubstr(value)) << value;
}

TEST(Curve, OverTimeBeginsWithTheFirstStepAndLeavesOutPauses) {
  RunDocuments run = example();
  run.metrics.push_back({{"step", 5}, {"time", 5000.0}, {"train/loss", 0.3}, {"speed/step_seconds", 1.0}});
  const Curve curve = curve_of(run, "train/loss");
  EXPECT_THAT(curve.steps, testing::ElementsAre(1, 2, 3, 4, 5));
  EXPECT_DOUBLE_EQ(curve.seconds.front(), 1);   // a step is over after its own time
  EXPECT_DOUBLE_EQ(curve.seconds.back(), 5.5);  // the evaluation took half a second; nobody trained after it
}

TEST(Curve, OfADocumentWithoutALogIsThatOfItsSteps) {
  RunDocuments run{.name = "x", .run = Json::parse(R"({"plan": {"global_batch": 6},
    "steps": [{"step": 1, "loss": 2.0, "seconds": 3}, {"step": 2, "loss": 1.0, "seconds": 2}],
    "evaluations": [{"step": 2, "accuracy": 0.5}]})")};
  EXPECT_THAT(curve_of(run, "train/loss").values, testing::ElementsAre(2, 1));
  EXPECT_THAT(curve_of(run, "speed/images_per_second").values, testing::ElementsAre(2, 3));
  EXPECT_THAT(curve_of(run, "val/accuracy").seconds, testing::ElementsAre(5));
}

TEST(Chart, KeepsEveryPeakWhenItIsThinned) {
  Series series{.name = "loss"};
  for (int i = 0; i < 10'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 7'777 ? 50 : 1);
  }
  const Series thin = thinned(series, 100);
  EXPECT_LE(thin.x.size(), 101U);
  EXPECT_THAT(thin.y, testing::Contains(50));
  EXPECT_EQ(thin.x.back(), 9'999);
}

TEST(Scale, EndsAtRoundNumbersAndHoldsAllValues) {
  const Scale scale = scale_for({0.13, 0.87}, 0, 100, false);
  EXPECT_LE(scale.low, 0.13);
  EXPECT_GE(scale.high, 0.87);
  EXPECT_EQ(scale_for({3, 3}, 0, 1, true).low, 0);
  EXPECT_GE(scale_for({3, 3}, 0, 1, true).high, 3);
  EXPECT_THAT(ticks(0, 10, 5), testing::ElementsAre(0, 2, 4, 6, 8, 10));
}

TEST(Timeline, StretchesTheSimulatedStepToTheMeasuredOne) {
  // 5 of 10 units are half of the step, as 0.25 of 0.5 seconds are: both bars have the same width.
  const std::string html = timeline(example());
  const std::string bar = "width='416' height=";
  const auto first = html.find(bar);
  ASSERT_NE(first, std::string::npos) << html;
  EXPECT_NE(html.find(bar, first + 1), std::string::npos) << html;
}

TEST(Benchmarks, AreBarsByImageSizeAndWay) {
  const auto bench = [](const char* family, int size, double speed) {
    return RunDocuments{.name = family,
                        .run = {{"command", {"tessera", "bench", family}},
                                {"model", "resnet50"},
                                {"plan", {{"image", {3, size, size}}, {"ranks", 2}, {"stages", Json::array()}}},
                                {"images_per_second", {{"median", speed}}},
                                {"peak_bytes", {1 << 20}}}};
  };
  const std::string html = benchmarks({bench("layer", 64, 10), bench("spatial", 64, 20), bench("spatial", 128, 5)});
  for (const char* value :
       {"data-value='10'", "data-value='20'", "data-value='5'", "64x64", "128x128", "layer: one rank"})
    EXPECT_THAT(html, HasSubstr(value)) << value;
  EXPECT_EQ(benchmarks({example()}), "");
}

TEST(Page, DrawsScalingAndWhatItsPointsAre) {
  RunDocuments run{.name = "scaling.json"};
  run.run = Json::parse(R"({"scaling": {"model": "resnet50", "image": [3, 2048, 2048], "costs": "estimated",
    "strong": [{"ranks": 1, "batch": 8, "problem": "no plan fits: <needs> more"},
               {"ranks": 2, "batch": 8, "images_per_second": 10, "efficiency": 1, "memory_bytes": 2147483648,
                "limit": "computing", "flags": {"grid": "1x2"}},
               {"ranks": 4, "batch": 8, "images_per_second": 15, "efficiency": 0.75, "memory_bytes": 1073741824,
                "limit": "margins and norms", "flags": {"grid": "2x2"}}],
    "weak": [{"ranks": 2, "batch": 16, "images_per_second": 11, "efficiency": 1, "memory_bytes": 2147483648,
              "limit": "computing", "flags": {}}]}})");
  const std::string html = page({run});
  for (const char* part : {"Scaling: resnet50, images of 2048x2048, costs estimated", "Images per second by ranks",
                           "limited by margins and norms; --grid 2x2", "75%", "no plan fits: &lt;needs&gt; more"})
    EXPECT_THAT(html, HasSubstr(part)) << part;
  EXPECT_THAT(html, Not(HasSubstr("id='summary'")));  // nothing was run
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  run.run["scaling"]["strong"] = "none";  // a document that is not as it should be
  EXPECT_NO_THROW(page({run}));
}

}  // namespace
}  // namespace tessera::report
