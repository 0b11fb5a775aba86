{{- /* All names begin with the release's; labels of a component, as a map in YAML. */}}
{{- define "rollserve.labels" -}}
app.kubernetes.io/name: rollserve
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "rollserve.ray" -}}
app.kubernetes.io/name: rollserve
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "rollserve.image" -}}
{{- $image := merge (dict) (.image | default dict) .root.Values.image -}}
image: {{ printf "%s:%s" $image.repository ($image.tag | default .root.Chart.AppVersion) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{- define "rollserve.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "rollserve.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- /* What all processes of Ray have in their environment. */}}
{{- define "rollserve.rayEnv" -}}
- {name: RAY_AUTH_MODE, value: token}
- name: RAY_AUTH_TOKEN
  valueFrom: {secretKeyRef: {name: {{ .Values.secrets.cluster | default (printf "%s-cluster" .Release.Name) }}, key: token}}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
# The cluster gives up a machine that is out of reach after 15 s; by default, after a minute.
- {name: RAY_health_check_period_ms, value: "1000"}
- {name: RAY_health_check_timeout_ms, value: "2000"}
{{- if .Values.gcsFaultTolerance }}
# How long nodes wait for a head that comes back; gateways wait half as long.
- {name: RAY_gcs_rpc_server_reconnect_timeout_s, value: "60"}
{{- end }}
{{- end }}

{{- define "rollserve.rayProbes" -}}
readinessProbe: {tcpSocket: {port: {{ . }}}, periodSeconds: 5, failureThreshold: 3}
livenessProbe: {tcpSocket: {port: {{ . }}}, initialDelaySeconds: 60, periodSeconds: 10, failureThreshold: 6}
{{- end }}

{{- /* Where a pod may be placed, and with whose images; each line begins with a line break. */}}
{{- define "rollserve.placement" }}
{{- range $key := list "runtimeClassName" "nodeSelector" "tolerations" "affinity" }}
{{- with get $.placed $key }}
{{ dict $key . | toYaml }}
{{- end }}
{{- end }}
{{- with $.root.Values.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Memory counts against the container's limit. */}}
{{- define "rollserve.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmp }}}
- name: shared-memory
  emptyDir: {medium: Memory, sizeLimit: {{ .sharedMemory }}}
{{- end }}

{{- define "rollserve.dns" -}}
- to:
    - namespaceSelector: {}
      podSelector:
        matchLabels: {k8s-app: kube-dns}
  ports:
    - {protocol: UDP, port: 53}
    - {protocol: TCP, port: 53}
{{- end }}
