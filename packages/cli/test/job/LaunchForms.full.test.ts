// SPDX-License-Identifier: Apache-2.0
/** The command under the variables of every launcher, and under all wrong ones. */
import { describeForms, describeWrong, forms, wrong } from "../support/launchForms.ts"

describeForms(Object.keys(forms))
describeWrong(wrong)
