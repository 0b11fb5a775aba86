//go:build go1.21

package rollserve_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	rollserve "github.com/rollserve/rollserve/client/go"
	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

func TestWarningsAreLogged(t *testing.T) {
	var ownText, defaultText bytes.Buffer
	own := slog.New(slog.NewTextHandler(&ownText, nil))
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&defaultText, nil)))
	defer slog.SetDefault(before)
	call := oneStep()
	progress := &pb.ObtainSamplesResponse_Progress{Progress: &pb.Progress{Warning: "no episode ends"}}
	call.responses = append(call.responses, &pb.ObtainSamplesResponse{Content: progress})
	for text, config := range map[*bytes.Buffer]rollserve.Config{
		&ownText: {Warn: rollserve.LogWarnings(own)}, &defaultText: {},
	} {
		server := &script{calls: []scripted{call}}
		_, err := server.connect(t, config).ObtainSamples(context.Background(), 1, nil)
		fatal(t, err)
		want := `level=WARN msg="rollserve: the server warns" warning="no episode ends"`
		if got := text.String(); strings.Count(got, want) != 1 {
			t.Errorf("got %q, want %q once", got, want)
		}
	}
}
