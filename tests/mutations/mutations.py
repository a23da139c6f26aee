"""The classic faults of this field: each is a change of one place that compiles, runs, and trains another network.

Fault(name, file, before, after): `before` stands in the file once. Keep the list true to the code: run.py says so when a
text is not there any more.
"""
from collections import namedtuple

# test: where no plan can show it, because plans are not stopped and gone on with.
Fault = namedtuple("Fault", "name file before after test", defaults=[None])

EXCHANGE = "src/tessera/comm/exchange.cpp"
LAYOUT = "src/tessera/plan/layout.cpp"
PLAN = "src/tessera/plan/plan.cpp"
NORM = "src/tessera/ops/pointwise.cpp"
EXECUTOR = "src/tessera/runtime/executor.cpp"
RANK_IMAGES = "src/tessera/runtime/rank_images.cpp"
TRAINER = "src/tessera/runtime/trainer.cpp"
SYNC = "src/tessera/runtime/gradient_sync.cpp"
SCHEDULE = "src/tessera/schedule/pipelines.cpp"
OPTIMIZER = "src/tessera/runtime/optimizer.cpp"
PARAMETERS = "src/tessera/runtime/parameters.cpp"

FAULTS = [
    # Margins.
    Fault("the margin's gradient is dropped", EXCHANGE,
          "  for (const Arrival& arrival : arrivals_) add_region(arrival.target, arrival.staged);\n", ""),
    Fault("the margin's gradient replaces what is there", EXCHANGE,
          "  for (const Arrival& arrival : arrivals_) add_region(arrival.target, arrival.staged);\n",
          "  for (const Arrival& arrival : arrivals_)\n"
          "    if (arrival.staged.count() > 0) copy_region(arrival.target, arrival.staged);\n"),
    Fault("corners are not sent", EXCHANGE,
          "!out.empty()) sends_.push_back({Rank{peer}, out});\n"
          "    if (const Box in = intersect(at(have.boxes, peer), need_); !in.empty()) receives_.push_back({Rank{peer}, in});\n",
          "!out.empty() && !(out.height().size() < have_.height().size() && out.width().size() < have_.width().size()))\n"
          "      sends_.push_back({Rank{peer}, out});\n"
          "    if (const Box in = intersect(at(have.boxes, peer), need_); !in.empty() &&\n"
          "        !(in.height().size() < at(have.boxes, peer).height().size() &&\n"
          "          in.width().size() < at(have.boxes, peer).width().size())) receives_.push_back({Rank{peer}, in});\n"),
    Fault("a fresh gradient is not cleared where nothing arrives", EXCHANGE,
          "    for (const Box& box : unseen_) zero_region(part_of(have, have_, box));\n",
          "    for (const Box& box : unseen_) static_cast<void>(box);\n"),
    Fault("the first gradient to arrive is added to memory of any content", EXCHANGE,
          "    if (into == Into::fresh && strip.first) {\n", "    if (false) {\n"),
    Fault("the margin is one row short at the bottom", LAYOUT,
          "          const Box need = node.op->input_box(out.made[m], i, shapes);\n",
          "          Box need = node.op->input_box(out.made[m], i, shapes);\n"
          "          if (need.height().end > owned[m].height().end) need[Axis::height].end -= 1;\n"),
    Fault("the margin is one column short at the left", LAYOUT,
          "          const Box need = node.op->input_box(out.made[m], i, shapes);\n",
          "          Box need = node.op->input_box(out.made[m], i, shapes);\n"
          "          if (need.width().begin < owned[m].width().begin) need[Axis::width].begin += 1;\n"),
    Fault("the margin of a value inside a fused block is neither made nor exchanged", LAYOUT,
          "      layout.made = layout.held;\n", ""),
    # Turns.
    Fault("only the first turn's sums count", EXECUTOR,
          "    if (!gather) mine.data = mine.data.sum(0);\n", "    if (!gather) mine.data = mine.data[0];\n"),
    Fault("margins' gradients of another turn are dropped", EXCHANGE,
          "  for (const Arrival& arrival : arrivals_) add_region(part_of(whole, have_, arrival.box), arrival.staged);\n", ""),
    Fault("every turn hands in the running statistics", EXECUTOR, "mine.statistics.share = 0;", ""),
    # Batch norm.
    Fault("a norm for each tile", EXECUTOR,
          "if (group == nullptr) return gather", "if (group == nullptr || gather) return gather"),
    Fault("a norm's gradient for each tile", EXECUTOR,
          "if (group == nullptr) return gather", "if (group == nullptr || !gather) return gather"),
    Fault("the unbiased variance in the normalisation", NORM,
          "std::sqrt(m2[g] / count +", "std::sqrt(m2[g] / (count - 1) +"),
    Fault("the biased variance in the running one", NORM,
          "for (double& v : m2) v /= count - 1;", "for (double& v : m2) v /= count;"),
    Fault("tiles weigh the same in a norm, however large", NORM,
          "delta * delta * count * from[0] / total;", "delta * delta * count / 2;"),
    Fault("statistics of the micros weighted in the wrong order", NORM,
          "static_cast<double>(s.micros - 1 - s.micro))", "static_cast<double>(s.micro))"),
    Fault("the gradient of a norm's scale counted once per rank", NORM,
          "weight_gradient[i] += s[channels + i] * inverse;", "weight_gradient[i] += (t ? t : s)[channels + i] * inverse;"),
    Fault("pixels computed twice count twice in the norm's gradient", NORM,
          "{row(0), statistics ? row(1) : zero, statistics ? row(2) : zero}", "{row(0), row(1), row(2)}"),
    Fault("every member hands in the running statistics", TRAINER,
          "w.place.member == 0 && first_of_replicas ? 1", "first_of_replicas ? 1"),
    Fault("every replica hands in the running statistics", TRAINER,
          "w.place.member == 0 && first_of_replicas ? 1", "w.place.member == 0 ? 1"),
    Fault("stale running statistics", TRAINER,
          "    held->parameters.update_statistics(plan_.global_micros());\n",
          "    if (step_ > 0) held->parameters.update_statistics(plan_.global_micros());\n"),
    Fault("running statistics decay once per step", PARAMETERS,
          "decay_.pow(static_cast<double>(micros))", "decay_.pow(static_cast<double>(micros > 0))"),
    Fault("--batch-norm global stays within a replica", TRAINER,
          "plan_.batch_norm == NormScope::global ? 0 : replica_;", "replica_;"),
    # Micros, ways, replicas, directions.
    Fault("gradients averaged over the copies", TRAINER,
          "    for (const auto& held : held_) held->sync->finish();\n",
          "    for (const auto& held : held_) held->sync->finish();\n"
          "    for (const auto& held : held_) held->parameters.flat_gradients().div_(held->copies.count());\n"),
    Fault("the first micro's images for every micro", RANK_IMAGES,
          "of_micro(batch_.images, micro)", "of_micro(batch_.images, 0)"),
    Fault("the first micro's labels for every micro", TRAINER, "batch.labels, micro);", "batch.labels, 0);"),
    Fault("gradients of the step before are kept", TRAINER,
          "    held->parameters.flat_sums().zero_();\n", "    if (step_ == 0) held->parameters.flat_sums().zero_();\n"),
    Fault("the same dropout in every step", TRAINER, "      .step = step_,\n", "      .step = 0,\n"),
    Fault("the same dropout in every micro", TRAINER, "      .first_sample = first,\n", "      .first_sample = 0,\n"),
    Fault("the loss of one rank", TRAINER, "    report.loss = reduced(mine);\n", "    report.loss = mine;\n"),
    Fault("every way trains the first share of a micro", PLAN,
          "split_evenly({0, micro_size()}, stage.batch_ways)[way];", "split_evenly({0, micro_size()}, stage.batch_ways)[way * 0];"),
    Fault("the direction up trains the samples of the direction down", PLAN,
          "(direction == Direction::up ? micros(Direction::down) : 0) + micro;", "micro;"),
    Fault("replicas train the same samples", PLAN,
          ": replica * micros() + index;", ": index;"),
    Fault("GPipe leaves out the last micro's backward", SCHEDULE,
          "for (int m = micros - 1; m >= 0; --m)", "for (int m = micros - 2; m >= 0; --m)"),
    Fault("zero-bubble leaves out a weight gradient", SCHEDULE,
          "  while (weights < micros) actions", "  while (weights < micros - 1) actions"),
    Fault("1F1B runs a forward twice", SCHEDULE,
          "actions.push_back({Kind::forward, stage, m + ahead});", "actions.push_back({Kind::forward, stage, std::max(0, m + ahead - 1)});"),
    # The sum of gradients, clipping, the optimizer.
    Fault("a bucket leaves before the last micro", TRAINER,
          "  if (index == w.held->last_action)\n", "  if (actions_[index].kind == Action::Kind::backward)\n"),
    Fault("the last bucket is forgotten", SYNC, "  if (copies_ && started_from_ > 0) start(started_from_);\n", ""),
    Fault("buckets that depend on how far a copy is", SYNC, "  complete_from(0);\n", ""),
    Fault("nodes do not add up their sums", SYNC,
          "masters_ ? masters_->all_reduce(bucket) : Pending();", "Pending();"),
    Fault("masters do not give out the sum", SYNC, "return back_->broadcast(bucket, Rank{0});", "return Pending();"),
    Fault("clipping by a rank's own norm", TRAINER,
          "std::sqrt(reduced(squares));", "std::sqrt(squares);"),
    Fault("copies count in the norm that clips", TRAINER,
          "squares += norm * norm / held->copies.count();", "squares += norm * norm;"),
    Fault("weight decay is forgotten", OPTIMIZER,
          "torch::optim::SGDOptions(o.lr).momentum(o.momentum).weight_decay(o.weight_decay)",
          "torch::optim::SGDOptions(o.lr).momentum(o.momentum)"),
    Fault("Adam counts its steps from the last start", OPTIMIZER,
          "  if (impl_->options.name == \"adam\") impl_->set_steps<torch::optim::AdamParamState>(steps);\n", "",
          test="golden_resume_test"),
]
