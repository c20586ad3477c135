{{- define "headway.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "headway.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "headway.labels" -}}
{{ include "headway.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "headway.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "headway.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The queue's URL, from the one place that was named. */}}
{{- define "headway.redisEnv" -}}
- name: HEADWAY_REDIS_URL
  valueFrom:
    secretKeyRef:
{{- if .Values.redis.existingSecret }}
      name: {{ .Values.redis.existingSecret | quote }}
      key: {{ .Values.redis.existingSecretKey | quote }}
{{- else }}
      name: {{ include "headway.fullname" . }}-queue
      key: redis-url
{{- end }}
{{- end -}}

{{- define "headway.redisUrl" -}}
{{- if .Values.redis.url -}}
{{- .Values.redis.url -}}
{{- else if .Values.valkey.enabled -}}
redis://{{ include "headway.fullname" . }}-valkey:6379/0
{{- else -}}
{{- fail "where is the queue? Set redis.existingSecret, redis.url, or valkey.enabled=true for a trial" -}}
{{- end -}}
{{- end -}}

{{- define "headway.commonEnv" -}}
{{ include "headway.redisEnv" . }}
- {name: HEADWAY_LOG_FORMAT, value: json}
{{- if .Values.otlp }}
- {name: HEADWAY_OTLP, value: {{ .Values.otlp | quote }}}
{{- end }}
{{- end -}}

{{/* Where files of batches lie: a URL, a folder, or nothing. */}}
{{- define "headway.filesPlace" -}}
{{- $f := .Values.files -}}
{{- $places := list -}}
{{- if $f.url }}{{ $places = append $places "files.url" }}{{ end -}}
{{- if $f.claim }}{{ $places = append $places "files.claim" }}{{ end -}}
{{- if $f.create }}{{ $places = append $places "files.create" }}{{ end -}}
{{- if gt (len $places) 1 -}}
{{- fail (printf "files lie in one place: give only one of %s" (join ", " $places)) -}}
{{- end -}}
{{- if $f.url }}{{ $f.url }}{{ else if $places }}/files{{ end -}}
{{- end -}}

{{- define "headway.filesClaim" -}}
{{- if .Values.files.create -}}
{{- include "headway.fullname" . }}-files
{{- else -}}
{{- .Values.files.claim -}}
{{- end -}}
{{- end -}}

{{- define "headway.filesEnvFrom" -}}
{{- with .Values.files.existingSecret }}
envFrom:
  - secretRef: {name: {{ . | quote }}}
{{- end }}
{{- end -}}

{{/* Annotations by which a Prometheus without the operator finds a pod. */}}
{{- define "headway.scraped" -}}
{{- if not .root.Values.monitoring.podMonitor }}
prometheus.io/scrape: "true"
prometheus.io/port: {{ .port | quote }}
prometheus.io/path: /metrics
{{- end }}
{{- with .root.Values.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}
