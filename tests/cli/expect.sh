# To be sourced: what the scripts here want of a command. Needs nothing, counts in $failures.
failures=0

# expect CODE PATTERN... -- COMMAND...: runs the command, wants the exit code and every pattern in its output.
expect() {
  local code=$1 patterns=()
  shift
  while [ "$1" != -- ]; do patterns+=("$1"); shift; done
  shift
  local output status
  output=$(timeout -k 5 150 "$@" 2>&1)
  status=$?
  local good=1
  [ "$status" = "$code" ] || good=0
  for pattern in "${patterns[@]}"; do grep -qF -e "$pattern" <<<"$output" || good=0; done
  if [ $good = 0 ]; then
    failures=$((failures + 1))
    printf 'FAILED: %s\n  wanted exit code %s and: %s\n  got exit code %s and:\n%s\n' "$*" "$code" \
      "$(printf '«%s» ' "${patterns[@]}")" "$status" "$(sed 's/^/    /' <<<"$output")"
  fi
}
