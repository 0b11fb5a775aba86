//go:build go1.21

package rollserve

import "log/slog"

// LogWarnings returns a function for Config.Warn that logs warnings of the server at slog.LevelWarn.
func LogWarnings(logger *slog.Logger) func(warning string) {
	return func(warning string) { logger.Warn("rollserve: the server warns", "warning", warning) }
}

func defaultWarn(warning string) { LogWarnings(slog.Default())(warning) }
