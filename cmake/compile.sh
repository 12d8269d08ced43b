#!/bin/sh
# The compiler through ccache. A precompiled header that is made anew must not see the old one: ccache's
# preprocessor would take it in the headers' place, and so give back one made from other headers.
#   compile.sh CCACHE COMPILER ARGUMENT...
precompiled=
output=
previous=
for argument in "$@"; do
  [ "$argument" = c++-header ] && precompiled=1
  [ "$previous" = -o ] && output=$argument
  previous=$argument
done
[ -n "$precompiled" ] && [ -n "$output" ] && rm -f "$output"
exec "$@"
