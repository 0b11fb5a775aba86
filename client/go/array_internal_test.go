package rollserve

import (
	"bytes"
	"testing"
)

// Only machines whose byte order is not the wire's swap bytes, so no call shows it elsewhere.
func TestSwappedElementsHaveTheirBytesInTheOppositeOrder(t *testing.T) {
	if got := swapped([]byte{1, 2, 3, 4, 5, 6, 7, 8}, 4); !bytes.Equal(got, []byte{4, 3, 2, 1, 8, 7, 6, 5}) {
		t.Errorf("got %v", got)
	}
}
