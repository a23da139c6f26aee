#include "child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>

#include "tessera/base/error.h"

namespace tessera::plans {

ChildResult run_child(const std::vector<std::string>& command, double seconds) {
  using Clock = std::chrono::steady_clock;
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Error(concat("pipe: ", std::strerror(errno)));
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) throw Error(concat("fork: ", std::strerror(errno)));
  if (child == 0) {
    setpgid(0, 0);  // so that all that it starts can be ended with it
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execvp(words[0], words.data());
    std::perror(words[0]);
    _exit(127);
  }
  setpgid(child, child);
  close(ends[1]);
  ChildResult result;
  const auto start = Clock::now();
  for (char buffer[4096];;) {
    const double left = seconds - std::chrono::duration<double>(Clock::now() - start).count();
    pollfd readable{ends[0], POLLIN, 0};
    if (left <= 0 || poll(&readable, 1, static_cast<int>(left * 1e3) + 1) == 0) {
      result.timed_out = true;
      kill(-child, SIGKILL);
      break;
    }
    const ssize_t bytes = read(ends[0], buffer, sizeof buffer);
    if (bytes == 0 || (bytes < 0 && errno != EINTR)) break;
    if (bytes > 0) result.output.append(buffer, static_cast<std::size_t>(bytes));
  }
  close(ends[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
  result.code = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  return result;
}

}  // namespace tessera::plans
