{{- define "izwi.selector" -}}
app.kubernetes.io/name: izwi
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}
{{- define "izwi.labels" -}}
{{ include "izwi.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
