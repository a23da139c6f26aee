// The parts of the page, each a function from documents to HTML. A part that the documents say nothing about is empty.
#pragma once

#include <string>
#include <vector>

#include "tessera/report/documents.h"

namespace tessera::report {

using Runs = std::vector<RunDocuments>;

/// "4 tiles, then 2 stages; 8 ranks": how a run was divided, in a few words.
std::string plan_words(const Json& plan);
/// What a rank does besides computing: the same colour (class s1, s2, ...) in every picture.
const std::vector<std::string>& part_names();
std::size_t part_colour(const std::string& part);
/// The last number that a metric had.
std::optional<double> last_of(const RunDocuments& run, const std::string& metric);

/// One row per run: what it is, and what came out.
std::string summary(const Runs& runs);
/// Loss, metrics, learning rate and speed over steps and time.
std::string curves(const Runs& runs);
/// Where the time of a step goes, and how much memory it takes, one row per rank.
std::string ranks(const RunDocuments& run);
/// The tiles over an image of the set, and the stages as bands of the network.
std::string plan_picture(const RunDocuments& run);
/// A step as the simulator predicts it, above the step as it happened.
std::string timeline(const RunDocuments& run);
/// The confusion matrix and the recall of each class.
std::string classes(const RunDocuments& run);
/// Images with what the network says of them.
std::string samples(const RunDocuments& run);
/// Images per second by image size and by way of parallelism, where the runs are benchmarks.
std::string benchmarks(const Runs& runs);
/// Images per second, efficiency and memory of the best plans on more and more ranks: tessera plan --scaling.
std::string scaling(const Runs& runs);

}  // namespace tessera::report
