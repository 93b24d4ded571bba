// SPDX-License-Identifier: Apache-2.0
/*
 * Holds the backend's own declarations to the headers of an installed UCX. It compiles where all of them agree.
 */
#include <ucp/api/ucp.h>

#include "../../native/ucp_abi.h"

namespace abi = tensorferry::ucx::abi;

#define SIZE(own, theirs) static_assert(sizeof(own) <= sizeof(theirs))
#define FIELD(own, field, theirs, other) \
  static_assert(offsetof(own, field) == offsetof(theirs, other) && sizeof(own::field) == sizeof(theirs::other))

SIZE(abi::Params, ucp_params_t);
FIELD(abi::Params, mask, ucp_params_t, field_mask);
FIELD(abi::Params, features, ucp_params_t, features);
FIELD(abi::Params, estimatedEps, ucp_params_t, estimated_num_eps);
FIELD(abi::Params, name, ucp_params_t, name);
static_assert(abi::paramFeatures == UCP_PARAM_FIELD_FEATURES);
static_assert(abi::paramEstimatedEps == UCP_PARAM_FIELD_ESTIMATED_NUM_EPS);
static_assert(abi::featureRma == UCP_FEATURE_RMA && abi::featureWakeup == UCP_FEATURE_WAKEUP);
static_assert(abi::featureMessages == UCP_FEATURE_AM);

SIZE(abi::WorkerParams, ucp_worker_params_t);
FIELD(abi::WorkerParams, mask, ucp_worker_params_t, field_mask);
FIELD(abi::WorkerParams, threadMode, ucp_worker_params_t, thread_mode);
FIELD(abi::WorkerParams, events, ucp_worker_params_t, events);
static_assert(abi::workerThreadMode == UCP_WORKER_PARAM_FIELD_THREAD_MODE);
static_assert(abi::threadSingle == UCS_THREAD_MODE_SINGLE);

SIZE(abi::WorkerAttr, ucp_worker_attr_t);
FIELD(abi::WorkerAttr, address, ucp_worker_attr_t, address);
FIELD(abi::WorkerAttr, addressLength, ucp_worker_attr_t, address_length);
FIELD(abi::WorkerAttr, maxHeader, ucp_worker_attr_t, max_am_header);
static_assert(abi::workerAttrAddress == UCP_WORKER_ATTR_FIELD_ADDRESS);
static_assert(abi::workerAttrMaxHeader == UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER);

SIZE(abi::EpParams, ucp_ep_params_t);
FIELD(abi::EpParams, address, ucp_ep_params_t, address);
FIELD(abi::EpParams, errorMode, ucp_ep_params_t, err_mode);
FIELD(abi::EpParams, onError, ucp_ep_params_t, err_handler.cb);
FIELD(abi::EpParams, errorArgument, ucp_ep_params_t, err_handler.arg);
FIELD(abi::EpParams, name, ucp_ep_params_t, name);
static_assert(abi::epRemoteAddress == UCP_EP_PARAM_FIELD_REMOTE_ADDRESS);
static_assert(abi::epErrorMode == UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE);
static_assert(abi::epErrorHandler == UCP_EP_PARAM_FIELD_ERR_HANDLER);
static_assert(abi::errorModePeer == UCP_ERR_HANDLING_MODE_PEER);
static_assert(abi::closeForce == UCP_EP_CLOSE_FLAG_FORCE);

SIZE(abi::MapParams, ucp_mem_map_params_t);
FIELD(abi::MapParams, address, ucp_mem_map_params_t, address);
FIELD(abi::MapParams, length, ucp_mem_map_params_t, length);
static_assert(abi::mapAddress == UCP_MEM_MAP_PARAM_FIELD_ADDRESS);
static_assert(abi::mapLength == UCP_MEM_MAP_PARAM_FIELD_LENGTH);

SIZE(abi::RequestParam, ucp_request_param_t);
FIELD(abi::RequestParam, mask, ucp_request_param_t, op_attr_mask);
FIELD(abi::RequestParam, flags, ucp_request_param_t, flags);
FIELD(abi::RequestParam, sent, ucp_request_param_t, cb.send);
FIELD(abi::RequestParam, userData, ucp_request_param_t, user_data);
FIELD(abi::RequestParam, memory, ucp_request_param_t, memh);
static_assert(abi::requestCallback == UCP_OP_ATTR_FIELD_CALLBACK);
static_assert(abi::requestUserData == UCP_OP_ATTR_FIELD_USER_DATA);
static_assert(abi::requestFlags == UCP_OP_ATTR_FIELD_FLAGS);
static_assert(abi::requestMemory == UCP_OP_ATTR_FIELD_MEMH);

FIELD(abi::MessageParam, attributes, ucp_am_recv_param_t, recv_attr);
FIELD(abi::MessageParam, reply, ucp_am_recv_param_t, reply_ep);
static_assert(abi::messageRendezvous == UCP_AM_RECV_ATTR_FLAG_RNDV);
FIELD(abi::HandlerParam, id, ucp_am_handler_param_t, id);
FIELD(abi::HandlerParam, handler, ucp_am_handler_param_t, cb);
FIELD(abi::HandlerParam, argument, ucp_am_handler_param_t, arg);
static_assert(abi::handlerId == UCP_AM_HANDLER_PARAM_FIELD_ID);
static_assert(abi::handlerCallback == UCP_AM_HANDLER_PARAM_FIELD_CB);
static_assert(abi::handlerArgument == UCP_AM_HANDLER_PARAM_FIELD_ARG);

static_assert(sizeof(abi::Status) == sizeof(ucs_status_t) && abi::inProgress == UCS_INPROGRESS);
static_assert(abi::outOfMemory == UCS_ERR_NO_MEMORY && abi::unreachable == UCS_ERR_UNREACHABLE);
static_assert(abi::busy == UCS_ERR_BUSY && abi::timedOut == UCS_ERR_TIMED_OUT && abi::last == UCS_ERR_LAST);
static_assert(abi::canceled == UCS_ERR_CANCELED && abi::connectionReset == UCS_ERR_CONNECTION_RESET);
static_assert(abi::endpointTimeout == UCS_ERR_ENDPOINT_TIMEOUT);
