// What --device, --dtype, --tf32 and --transport may be, on machines that are not there.
#include "tessera/runtime/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Four processes, each with a GPU of its own that has everything, in a program that has everything.
const DeviceFacts cluster{.cuda_built = true,
                          .nccl_built = true,
                          .rank_without_gpu = -1,
                          .bfloat16 = true,
                          .ranks_are_processes = true,
                          .own_gpus = true};
const DeviceWish wish{.cuda = true, .bfloat16 = true, .tf32 = true, .transport = "auto"};

DeviceWish by(const char* transport) {
  DeviceWish w = wish;
  w.transport = transport;
  return w;
}

TEST(Device, EverythingIsThere) {
  for (const char* transport : {"auto", "mpi", "nccl"}) EXPECT_THAT(device_problems(by(transport), cluster), IsEmpty());
  EXPECT_EQ(chosen_transport(by("auto"), cluster), Transport::nccl);
  EXPECT_EQ(chosen_transport(by("nccl"), cluster), Transport::nccl);
  EXPECT_EQ(chosen_transport(by("mpi"), cluster), Transport::mpi);
}

TEST(Device, CpusHaveNothingOfIt) {
  EXPECT_THAT(device_problems({}, cluster), IsEmpty());
  EXPECT_EQ(chosen_transport({}, cluster), Transport::mpi);
  EXPECT_THAT(device_problems({.cuda = false, .bfloat16 = true, .tf32 = true, .transport = "nccl"}, {}),
              ElementsAre(AllOf(HasSubstr("--dtype bfloat16"), HasSubstr("--device cuda")), HasSubstr("--tf32"),
                          AllOf(HasSubstr("--transport nccl"), HasSubstr("--device cuda"))));
}

TEST(Device, NoCudaInTheProgram) {
  EXPECT_THAT(device_problems(wish, {}),
              ElementsAre(AllOf(HasSubstr("built without CUDA"), HasSubstr("--device cpu"))));
}

TEST(Device, NoGpuVisible) {
  DeviceFacts facts = cluster;
  facts.rank_without_gpu = 2;
  EXPECT_THAT(device_problems(wish, facts),
              ElementsAre(AllOf(HasSubstr("no GPU is visible to rank 2"), HasSubstr("CUDA_VISIBLE_DEVICES"))));
  facts = {.cuda_built = true, .rank_without_gpu = 0};
  EXPECT_THAT(device_problems(wish, facts), ElementsAre(HasSubstr("no GPU is visible;")));
}

TEST(Device, NoBfloat16InTheGpu) {
  DeviceFacts facts = cluster;
  facts.bfloat16 = false;
  EXPECT_THAT(device_problems(wish, facts),
              ElementsAre(AllOf(HasSubstr("--dtype bfloat16"), HasSubstr("8.0"), HasSubstr("--dtype float32"))));
  EXPECT_THAT(device_problems({.cuda = true}, facts), IsEmpty());
}

TEST(Device, NoNcclInTheProgram) {
  DeviceFacts facts = cluster;
  facts.nccl_built = false;
  EXPECT_THAT(device_problems(by("nccl"), facts),
              ElementsAre(AllOf(HasSubstr("built without NCCL"), HasSubstr("--transport mpi"))));
  EXPECT_THAT(device_problems(by("auto"), facts), IsEmpty());
  EXPECT_EQ(chosen_transport(by("auto"), facts), Transport::mpi);
}

TEST(Device, RanksThatShareAGpu) {
  DeviceFacts facts = cluster;
  facts.own_gpus = false;
  EXPECT_THAT(device_problems(by("nccl"), facts),
              ElementsAre(AllOf(HasSubstr("share a GPU"), HasSubstr("--transport mpi"))));
  EXPECT_THAT(device_problems(by("auto"), facts), IsEmpty());
  EXPECT_EQ(chosen_transport(by("auto"), facts), Transport::mpi);
}

TEST(Device, RanksThatAreThreads) {
  DeviceFacts facts = cluster;
  facts.ranks_are_processes = facts.own_gpus = false;
  EXPECT_THAT(device_problems(by("nccl"), facts), ElementsAre(AllOf(HasSubstr("threads"), HasSubstr("mpirun -np"))));
  EXPECT_THAT(device_problems(by("auto"), facts), IsEmpty());
  EXPECT_EQ(chosen_transport(by("auto"), facts), Transport::mpi);
}

}  // namespace
}  // namespace tessera
