#!/bin/bash
# Runs a command, and adds a line to a file: WHAT, NAME, processor-seconds of the command and all that it waited for,
# seconds by the clock. run.sh --times puts it in front of compilers, linkers and tests.
#   timed.sh FILE WHAT NAME COMMAND...
file=$1 what=$2 name=$3
shift 3
exec 3>&1 4>&2
TIMEFORMAT='%U %S %R'
spent=$({ time "$@" >&3 2>&4 3>&- 4>&-; } 2>&1)
code=$?
read -r user system clock <<< "$spent"
echo "$what $name $user $system $clock" >> "$file"
exit $code
