package automation

// Executable says why a definition cannot be admitted as a run, or nil. Its errors are not_executable for a
// draft, and unsupported_plan_version for a plan that a later build stored.
func (d Definition) Executable() error {
	plan := d.Workflow.Compiled
	if plan == nil {
		return Errorf(CodeNotExecutable, "the automation is a draft: give it a plan in workflow.compiled")
	}
	if !SupportsPlanVersion(plan.Version) {
		return Errorf(CodeUnsupportedPlanVersion,
			"plans of version %d are not supported by this build, only %v", plan.Version, SupportedPlanVersions)
	}
	return nil
}
