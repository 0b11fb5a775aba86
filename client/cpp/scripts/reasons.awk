# Write reasons.h from errors.proto: awk -f reasons.awk errors.proto
BEGIN {
  print "#pragma once\n"
  print "/// @file"
  print "/// Why calls fail, for programs. Generated from errors.proto by `make protos`.\n"
  print "namespace rollserve::reason {"
}
/^ *\/\/ / && in_enum { sub(/^ *\/\//, "///"); comment = comment $0 "\n"; next }
/^enum ErrorReason/ { in_enum = 1; comment = ""; next }
/^}/ { in_enum = 0 }
in_enum && /ERROR_REASON_/ {
  name = $1
  sub(/^ERROR_REASON_/, "", name)
  if (name != "UNSPECIFIED") printf "\n%sinline constexpr const char* %s = \"%s\";\n", comment, name, name
  comment = ""
}
END { print "\n}  // namespace rollserve::reason" }
