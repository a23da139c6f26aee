// What a data set says by itself, where the flags say nothing: its kind, the size of its images, how many classes.
#pragma once

#include "options.h"

namespace tessera {

class Launch;

/// Fills in --app where it was not given, and throws UsageError for flags that mean nothing for the data there is.
void settle_kind(Options& options);
/// Fills in --image-size and --num-classes where they were not given. Image files are never shrunk silently: their own
/// size is taken, if all agree. Collective over the processes of the launch. Throws UsageError.
void settle_shape(Options& options, const ModelRegistry& models, const Launch& launch);

}  // namespace tessera
