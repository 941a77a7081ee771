#!/usr/bin/env python3
"""Reports which lines of c_src/core the C tests have reached. Called by scripts/coverage.sh.

usage: coverage.py BUILD_DIRECTORY LIST LEAST_PERCENT

Prints a table of files with their uncovered lines. Fails if less than LEAST_PERCENT of all lines are covered, or if an
error return is neither reached nor named in LIST. A line can contain a condition and a return: it is reached only if
gcov has seen every block of it. LIST has lines "file | function | text of the source line | reason"; a line of it that
names nothing unreached is an error too, so that it does not grow stale.
"""
import collections
import glob
import json
import os
import re
import subprocess
import sys

# A status other than ok, an error that is filled, or the failure of a function that returns a pointer or a bool.
ERROR = re.compile(
    r"\b(return|goto)\b.*(XT_STATUS_(?!ok)|xt_error_|NULL|\bfalse\b|\bstatus\b|fail|corrupt|no_memory)|xt_error_(set|at)\(")


def read_gcov(directory):
    """Returns {file: {line: (count, reached, function)}} of c_src/core, headers summed over the files that include them."""
    lines = collections.defaultdict(dict)
    data = glob.glob(os.path.join(directory, "**/*.gcda"), recursive=True)
    for start in range(0, len(data), 50):
        command = ["gcov", "--json-format", "--stdout", *data[start:start + 50]]
        output = subprocess.run(command, check=True, capture_output=True).stdout
        for document in output.splitlines():
            for file in json.loads(document)["files"]:
                name = os.path.relpath(file["file"])
                if not name.startswith("c_src/core/"):
                    continue
                for line in file["lines"]:
                    count, reached, _ = lines[name].get(line["line_number"], (0, False, ""))
                    whole = line["count"] > 0 and not line["unexecuted_block"]
                    function = line.get("function_name", "")
                    lines[name][line["line_number"]] = (count + line["count"], reached or whole, function)
    return lines


def ranges(numbers):
    """[1, 2, 3, 7] as "1-3 7"."""
    result = []
    for number in numbers:
        if result and number == result[-1][1] + 1:
            result[-1][1] = number
        else:
            result.append([number, number])
    return " ".join(str(a) if a == b else f"{a}-{b}" for a, b in result)


def read_list(path):
    named = {}
    for line in open(path, encoding="utf-8"):
        if line.strip() and not line.startswith("#"):
            key, reason = line.strip().rsplit(" | ", 1)
            named[tuple(key.split(" | ", 2))] = reason
    return named


def main(directory, list_path, least):
    coverage, named, used, unnamed = read_gcov(directory), read_list(list_path), set(), []
    total = covered = errors = errors_reached = 0
    for file in sorted(coverage):
        source = open(file, encoding="utf-8").read().splitlines()
        lines = sorted(coverage[file].items())
        missing = [number for number, (count, _, _) in lines if count == 0]
        part = 100 * (len(lines) - len(missing)) / len(lines)
        print(f"{part:6.1f} %  {len(lines):4}  {file:45} {ranges(missing)}".rstrip())
        total, covered = total + len(lines), covered + len(lines) - len(missing)
        for number, (_, reached, function) in lines:
            text = source[number - 1].strip()
            if not ERROR.search(text):
                continue
            errors, errors_reached = errors + 1, errors_reached + reached
            if not reached and (file, function, text) in named:
                used.add((file, function, text))
            elif not reached:
                unnamed.append(f"{file}:{number}: {function} | {text}")
    percent = 100 * covered / total
    print(f"{percent:6.1f} %  {total:4}  total")
    print(f"error returns: {errors}, reached {errors_reached}, named {errors - errors_reached - len(unnamed)}")
    for line in unnamed:
        print(f"not reached and not named: {line}")
    stale = [" | ".join(key) for key in named if key not in used]
    for line in stale:
        print(f"named in {list_path}, but reached or gone: {line}")
    if percent < least:
        print(f"coverage is less than {least} %")
    return int(percent < least or bool(unnamed) or bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
