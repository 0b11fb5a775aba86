package rollserve

import (
	"google.golang.org/protobuf/proto"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Account says what was simulated for a call, and what became of it: its fields are those of the wire. After an
// interruption of the stream, it counts what all calls of the stream delivered; its other numbers are those of the last
// call.
type Account struct {
	*pb.Account
	// NumResumptions is the number of interruptions of the stream, each followed by a call that continued it.
	NumResumptions int
}

func (a *Account) withDroppedInfos(dropped map[string]uint64) *Account {
	if len(dropped) == 0 {
		return a
	}
	changed := &Account{proto.Clone(a.Account).(*pb.Account), a.NumResumptions}
	if changed.DroppedInfos == nil {
		changed.DroppedInfos = map[string]uint64{}
	}
	for name, count := range dropped {
		changed.DroppedInfos[name] += count
	}
	return changed
}
