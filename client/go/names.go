package rollserve

import (
	"fmt"
	"math"
	"sort"
)

// numberOf returns the number that the wire has for a name, which may be empty if numbers has one for that.
func numberOf[T ~string, N ~int32](field string, numbers map[T]N, name T) (N, error) {
	number, known := numbers[name]
	if !known {
		names := make([]string, 0, len(numbers))
		for each := range numbers {
			if each != "" {
				names = append(names, string(each))
			}
		}
		sort.Strings(names)
		return 0, invalid(field, fmt.Sprintf("one of %q", names), fmt.Sprintf("%q", name))
	}
	return number, nil
}

// countOf returns a number that the wire has as uint32.
func countOf(field string, count int) (uint32, error) {
	if count < 0 || int64(count) > math.MaxUint32 {
		return 0, invalid(field, "a number from 0 to 4294967295", count)
	}
	return uint32(count), nil
}

// nameOf returns the name for a number of the wire; the empty one for none, and for numbers of later versions.
func nameOf[T ~string, N ~int32](numbers map[T]N, number N) T {
	for name, each := range numbers {
		if each == number {
			return name
		}
	}
	return ""
}
